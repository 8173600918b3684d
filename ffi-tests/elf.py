"""What a shared library shows the linker and the loader. Each function returns what is wrong with it."""

import re

from elftools.elf.elffile import ELFFile

# The newest glibc whose symbols may be needed: that of Debian 12 and Ubuntu 22.04 is newer.
NEWEST_GLIBC = (2, 34)
SYSTEM = {"libc.so.6", "libgcc_s.so.1", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
FLAGS_1 = {"NOW": 0x1, "NODELETE": 0x8}
STATIC_TLS = 0x10


def _section(path, name, read):
    with open(path, "rb") as file:
        elf = ELFFile(file)
        return read(elf, elf.get_section_by_name(name))


def exports(path):
    """The names that the library defines for others."""
    is_export = lambda symbol: symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_LOCAL"
    return _section(path, ".dynsym", lambda _, table: sorted(symbol.name for symbol in table.iter_symbols() if is_export(symbol)))


def too_new_glibc(path, newest=NEWEST_GLIBC):
    """Versions of glibc that are needed, and newer than allowed."""
    read = lambda _, table: [needed.name for library, all in table.iter_versions() for needed in all]
    needed = [name.removeprefix("GLIBC_") for name in _section(path, ".gnu.version_r", read) if name.startswith("GLIBC_")]
    assert needed, "it needs no symbol of glibc"
    is_fine = lambda version: version[0].isdigit() and tuple(map(int, version.split(".")[:2])) <= newest
    return [version for version in needed if not is_fine(version)]


def functions_between(path, oldest, newest):
    """The names that are needed without fail, of a glibc newer than the first version and older than the second."""

    def read(elf, versions):
        table = elf.get_section_by_name(".gnu.version")
        symbols = enumerate(elf.get_section_by_name(".dynsym").iter_symbols())
        for place, symbol in symbols:
            index = table.get_symbol(place)["ndx"]
            if symbol["st_shndx"] != "SHN_UNDEF" or symbol["st_info"]["bind"] != "STB_GLOBAL" or isinstance(index, str):
                continue
            name = versions.get_version(index)[1].name
            version = re.fullmatch(r"GLIBC_(\d+)\.(\d+).*", name)
            if version and oldest < tuple(map(int, version.groups())) < newest:
                yield symbol.name

    return _section(path, ".gnu.version_r", lambda elf, versions: set(read(elf, versions)))


def needed(path):
    """The libraries that are loaded with a program."""
    read = lambda _, section: [tag.needed for tag in section.iter_tags("DT_NEEDED")] if section else []
    return _section(path, ".dynamic", read)


def dynamic(path, soname, needed=(), runpath=None):
    """What the loader does otherwise than is wanted."""
    tags = _section(path, ".dynamic", lambda _, table: [(tag.entry.d_tag, tag) for tag in table.iter_tags()])
    of = lambda kind, field: [getattr(tag, field) for name, tag in tags if name == kind]
    flags = sum(tag.entry.d_val for name, tag in tags if name == "DT_FLAGS_1")
    plain_flags = sum(tag.entry.d_val for name, tag in tags if name == "DT_FLAGS")
    wrong = []
    if of("DT_SONAME", "soname") != [soname]:
        wrong.append(f"the SONAME is {of('DT_SONAME', 'soname')} and not {soname}")
    # Without NODELETE dlclose would unmap code that is still called; without NOW the loader would look functions up on the
    # caller's stack, which may be small.
    wrong += [f"{name} is not set" for name, bit in FLAGS_1.items() if not flags & bit]
    wrong += [f"{name} is set" for name, _ in tags if name in ("DT_RPATH", "DT_TEXTREL")]
    # dlopen finds room for such thread-locals only while the loader's reserve lasts, which libraries share
    # (jemalloc/jemalloc#1237, microsoft/mimalloc#147).
    wrong += ["STATIC_TLS is set"] if plain_flags & STATIC_TLS else []
    if of("DT_RUNPATH", "runpath") != ([runpath] if runpath else []):
        wrong.append(f"the RUNPATH is {of('DT_RUNPATH', 'runpath')} and not {runpath}")
    found = set(of("DT_NEEDED", "needed"))
    wrong += [f"{name} is not loaded" for name in set(needed) - found]
    wrong += [f"{name} is loaded" for name in found - set(needed) - SYSTEM]
    return wrong


def called_at(path, section):
    """The names of the functions that .init_array or .fini_array calls."""

    def read(elf, array):
        start, end = array["sh_addr"], array["sh_addr"] + array["sh_size"]
        relocations = elf.get_section_by_name(".rela.dyn").iter_relocations()
        entries = [entry["r_addend"] for entry in relocations if start <= entry["r_offset"] < end]
        assert len(entries) * 8 == array["sh_size"], "it has entries that are no addresses in the library"
        symbols = elf.get_section_by_name(".symtab").iter_symbols()
        names = {symbol["st_value"]: symbol.name for symbol in symbols if symbol["st_info"]["type"] == "STT_FUNC"}
        return [names.get(address, f"a function without a name at {address:#x}") for address in entries]

    return _section(path, section, read)
