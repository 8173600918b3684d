// What a peer that is not a crate exports: one allocator for the process.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The start of the region of peers that only compute addresses: there is no memory behind it.
#define PEER_ADDRESS ((uintptr_t)1 << 40)

// Makes the allocator with one region of `capacity` bytes, of real memory if `touched`. Returns NULL, or why there is
// none, which stays valid.
const char *peer_open(uint64_t capacity, int touched);

// Makes the allocator as its users get it, taking its memory on demand. Returns as peer_open does. Not every peer has it.
const char *peer_open_on_demand(void);

// Returns the bytes that it holds now from where its memory comes from. Only after peer_open_on_demand.
uint64_t peer_held(void);

// Returns NULL if there is no memory.
void *peer_alloc(size_t bytes);

// Frees what was allocated with so many bytes.
void peer_free(void *ptr, size_t bytes);

#ifdef __cplusplus
}
#endif
