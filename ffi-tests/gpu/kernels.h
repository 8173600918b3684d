/* PTX (NVIDIA's PTX ISA manual), for Volta and later.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BFC_GPU_KERNELS_H
#define BFC_GPU_KERNELS_H

/* Registers of the loops over `words` words at %d1: %r6 is the next word, %r7 how far the next is. */
#define EACH_WORD                      \
  "  ld.param.u64 %d1, [at];\n"        \
  "  cvta.to.global.u64 %d1, %d1;\n"   \
  "  ld.param.u32 %r1, [words];\n"     \
  "  ld.param.u32 %r2, [value];\n"     \
  "  mov.u32 %r3, %ctaid.x;\n"         \
  "  mov.u32 %r4, %ntid.x;\n"          \
  "  mov.u32 %r5, %tid.x;\n"           \
  "  mad.lo.u32 %r6, %r3, %r4, %r5;\n" \
  "  mov.u32 %r7, %nctaid.x;\n"        \
  "  mul.lo.u32 %r7, %r7, %r4;\n"      \
  "next:\n"                            \
  "  setp.ge.u32 %p1, %r6, %r1;\n"     \
  "  @%p1 bra done;\n"                 \
  "  mul.wide.u32 %d2, %r6, 4;\n"      \
  "  add.u64 %d3, %d1, %d2;\n"

static const char PTX[] =
    ".version 6.4\n"
    ".target sm_70\n"
    ".address_size 64\n"
    /* at[0 .. words] = value */
    ".visible .entry fill(.param .u64 at, .param .u32 words, .param .u32 value)\n"
    "{\n"
    "  .reg .pred %p<2>;\n"
    "  .reg .b32 %r<8>;\n"
    "  .reg .b64 %d<4>;\n" EACH_WORD
    "  st.global.u32 [%d3], %r2;\n"
    "  add.u32 %r6, %r6, %r7;\n"
    "  bra next;\n"
    "done:\n"
    "  ret;\n"
    "}\n"
    /* *wrong += how many of at[0 .. words] are not value */
    ".visible .entry expect(.param .u64 at, .param .u32 words, .param .u32 value, .param .u64 wrong)\n"
    "{\n"
    "  .reg .pred %p<3>;\n"
    "  .reg .b32 %r<10>;\n"
    "  .reg .b64 %d<5>;\n"
    "  ld.param.u64 %d4, [wrong];\n"
    "  cvta.to.global.u64 %d4, %d4;\n" EACH_WORD
    "  ld.volatile.global.u32 %r8, [%d3];\n"
    "  setp.eq.u32 %p2, %r8, %r2;\n"
    "  @%p2 bra fine;\n"
    "  atom.global.add.u32 %r9, [%d4], 1;\n"
    "fine:\n"
    "  add.u32 %r6, %r6, %r7;\n"
    "  bra next;\n"
    "done:\n"
    "  ret;\n"
    "}\n"
    /* So many nanoseconds. */
    ".visible .entry delay(.param .u64 nanoseconds)\n"
    "{\n"
    "  .reg .pred %p<2>;\n"
    "  .reg .b64 %d<5>;\n"
    "  ld.param.u64 %d1, [nanoseconds];\n"
    "  mov.u64 %d2, %globaltimer;\n"
    "again:\n"
    "  mov.u64 %d3, %globaltimer;\n"
    "  sub.u64 %d4, %d3, %d2;\n"
    "  setp.lt.u64 %p1, %d4, %d1;\n"
    "  @%p1 bra again;\n"
    "  ret;\n"
    "}\n";

#undef EACH_WORD

#endif
