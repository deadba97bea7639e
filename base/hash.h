/*
 * hash.h - digests of bytes, of tensors (tree hash) and of histories (chain).
 *
 * The hash is XXH3-128 in its canonical, big-endian form, as `xxhsum -H2` prints it. It shows
 * whether two results are equal and where they differ; it is no protection against forgery.
 *
 * The tree hash of a tensor that consists of logical shards:
 *   canonical bytes   the rows of a shard without the padding between them; little-endian elements
 *   leaf              16 KiB of canonical bytes; a shard begins a new leaf; its last may be shorter
 *   leaf digest       XXH3-128(bytes of the leaf); leaves are numbered through all shards
 *   inner digest      XXH3-128(up to 1024 child digests); levels until one digest is left
 *   top               that digest; XXH3-128 of no bytes if there is no leaf
 *   root              XXH3-128(le64 number of bytes || le64 number of shards || top)
 * So a shard is hashed in place, and two tensors can be compared leaf by leaf without their data.
 * Only the number of shards is hashed, not how the bytes are divided among them: the division
 * belongs to the name of the tensor, like shape and type.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_HASH_H
#define INVAR_BASE_HASH_H

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_digest {
    uint8_t bytes[16];
} invar_digest;

/* ---- digests --------------------------------------------------------------------------------- */

#define INVAR_DIGEST_HEX_SIZE 33 /* 32 digits and the terminating NUL */

/*
 * Writes a digest as 32 lower-case hexadecimal digits, and returns `out`. The macro's text lives as
 * long as a local variable of the block that it stands in.
 */
const char *invar_digest_format(char out[INVAR_DIGEST_HEX_SIZE], const invar_digest *digest);
#define INVAR_DIGEST_HEX(digest) invar_digest_format((char[INVAR_DIGEST_HEX_SIZE]){0}, digest)

/* Parses exactly 32 hexadecimal digits of either case. Returns INVAR_E_INVALID for other text. */
invar_status invar_digest_parse(invar_digest *out, const char *hex) INVAR_MUST_USE;

/* Like invar_digest_parse, but accepts lower-case digits only, so that a digest has one text. */
invar_status invar_digest_read(invar_digest *out, const char *hex) INVAR_MUST_USE;

bool invar_digest_equal(const invar_digest *a, const invar_digest *b);

/* Advances the chain over steps: *chain = XXH3-128(*chain || *root). */
void invar_digest_chain(invar_digest *chain, const invar_digest *root);

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Computes the digest of `data` (bytes), which may be NULL if `bytes` is 0. */
void invar_hash_bytes(invar_digest *out, const void *data, size_t bytes);

/* Computes the digest of invar_hash_bytes incrementally. Holds no resource to release. */
typedef struct invar_hasher {
    alignas(64) unsigned char state[576];
} invar_hasher;

void invar_hasher_init(invar_hasher *hasher);
void invar_hasher_update(invar_hasher *hasher, const void *data, size_t bytes);

/* *out = the digest of the bytes added so far. More bytes may be added afterwards. */
void invar_hasher_final(invar_digest *out, const invar_hasher *hasher);

/* ---- the tree hash --------------------------------------------------------------------------- */

#define INVAR_TREE_LEAF_BYTES 16384
#define INVAR_TREE_FANOUT 1024

/* A logical shard of a tensor: rows in memory. */
typedef struct invar_tree_shard {
    const void *data;        /* first row; may be NULL if the shard is empty */
    int64_t rows;            /* number of rows */
    size_t row_bytes;        /* bytes of a row */
    size_t row_stride_bytes; /* bytes from one row to the next, at least row_bytes */
} invar_tree_shard;

/* A tensor for the tree hash. */
typedef struct invar_tree_input {
    const invar_tree_shard *shards; /* (n_shards) */
    int64_t n_shards;
} invar_tree_input;

/*
 * *out = the root of a tensor. The result does not depend on `pool`, which may be NULL to use the
 * calling thread only. Returns INVAR_E_INVALID for an impossible shard.
 */
invar_status invar_tree_hash(invar_digest *out, invar_pool *pool,
                             const invar_tree_input *in) INVAR_MUST_USE;

/* *out = the number of bytes of scratch for invar_tree_hash_with. */
invar_status invar_tree_scratch(size_t *out, const invar_tree_input *in) INVAR_MUST_USE;

/* Like invar_tree_hash, but uses `scratch`, aligned to 16 bytes, instead of the heap. */
invar_status invar_tree_hash_with(invar_digest *out, invar_pool *pool, const invar_tree_input *in,
                                  void *scratch) INVAR_MUST_USE;

/* *out = the number of leaves of a tensor. */
invar_status invar_tree_leaf_count(int64_t *out, const invar_tree_input *in) INVAR_MUST_USE;

/* Writes the leaf digests to `out` (count), in order. `count` is that of invar_tree_leaf_count. */
invar_status invar_tree_leaves(invar_digest *out, int64_t count, invar_pool *pool,
                               const invar_tree_input *in) INVAR_MUST_USE;

/* Like invar_tree_leaves, but uses `scratch` (n_shards int64_t) instead of the heap. */
invar_status invar_tree_leaves_with(invar_digest *out, int64_t count, invar_pool *pool,
                                    const invar_tree_input *in, void *scratch) INVAR_MUST_USE;

/*
 * *out = the root of a tensor from its leaf digests (count), which may have been computed shard by
 * shard. `bytes` and `n_shards` are those of the complete tensor. Returns INVAR_E_INVALID for
 * numbers that contradict each other.
 */
invar_status invar_tree_root(invar_digest *out, const invar_digest *leaves, int64_t count,
                             uint64_t bytes, int64_t n_shards) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
