/*
 * hash.h - digests of bytes, of tensors (the tree hash) and of histories (the chain).
 *
 * The hash is XXH3-128 in its canonical, big-endian form: what `xxhsum -H2` prints. It shows that
 * two results are equal and where they differ; it is no defence against forgery.
 *
 * The tree hash of a tensor that consists of logical shards:
 *   canonical bytes   the rows of a shard without the padding between them; little-endian elements
 *   leaf              16 KiB of canonical bytes; restarts at each shard, whose last may be shorter
 *   leaf digest       XXH3-128(bytes of the leaf); leaves are numbered through all shards
 *   inner digest      XXH3-128(up to 1024 child digests); levels until one digest is left
 *   top               that digest; XXH3-128 of no bytes where there is no leaf
 *   root              XXH3-128(le64 number of bytes || le64 number of shards || top)
 * So a shard is hashed where it lies, and two tensors are compared leaf by leaf without the data.
 * How the bytes divide into shards is not hashed beyond their number: it is part of the tensor's
 * name, as shape and type are.
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

/* 32 lower-case hexadecimal digits. */
void invar_digest_format(char out[INVAR_DIGEST_HEX_SIZE], const invar_digest *digest);

/* Exactly 32 hexadecimal digits, of either case. */
invar_status invar_digest_parse(invar_digest *out, const char *hex) INVAR_MUST_USE;

/* The same of a file of ours: as _format writes it, so that one digest has one text. */
invar_status invar_digest_read(invar_digest *out, const char *hex) INVAR_MUST_USE;

bool invar_digest_equal(const invar_digest *a, const invar_digest *b);

/* One link of the chain over steps: *chain = XXH3-128(*chain || *root). */
void invar_digest_chain(invar_digest *chain, const invar_digest *root);

/* ---- bytes ----------------------------------------------------------------------------------- */

/* `data` may be NULL when `bytes` is 0. */
void invar_hash_bytes(invar_digest *out, const void *data, size_t bytes);

/* The same digest from pieces. Owned by the caller; holds no resource, so nothing to release. */
typedef struct invar_hasher {
    alignas(64) unsigned char state[576];
} invar_hasher;

void invar_hasher_init(invar_hasher *hasher);
void invar_hasher_update(invar_hasher *hasher, const void *data, size_t bytes);

/* The digest of what has been added so far; more may follow. */
void invar_hasher_final(invar_digest *out, const invar_hasher *hasher);

/* ---- the tree hash --------------------------------------------------------------------------- */

#define INVAR_TREE_LEAF_BYTES 16384
#define INVAR_TREE_FANOUT 1024

/* One logical shard: `rows` rows of `row_bytes` bytes, `row_stride_bytes` from start to start. */
typedef struct invar_tree_shard {
    const void *data; /* may be NULL when the shard is empty */
    int64_t rows;
    size_t row_bytes;
    size_t row_stride_bytes; /* at least row_bytes */
} invar_tree_shard;

typedef struct invar_tree_input {
    const invar_tree_shard *shards; /* (n_shards) */
    int64_t n_shards;
} invar_tree_input;

/* The root. The same bits for every pool; NULL runs on the calling thread. */
invar_status invar_tree_hash(invar_digest *out, invar_pool *pool,
                             const invar_tree_input *in) INVAR_MUST_USE;

/* The same without the heap: `scratch` has room for invar_tree_scratch bytes, aligned to 16. */
invar_status invar_tree_scratch(size_t *out, const invar_tree_input *in) INVAR_MUST_USE;
invar_status invar_tree_hash_with(invar_digest *out, invar_pool *pool, const invar_tree_input *in,
                                  void *scratch) INVAR_MUST_USE;

/* How many leaves the input has. */
invar_status invar_tree_leaf_count(int64_t *out, const invar_tree_input *in) INVAR_MUST_USE;

/* The leaf digests in order, into `out`, which has room for `count`, the value of leaf_count. */
invar_status invar_tree_leaves(invar_digest *out, int64_t count, invar_pool *pool,
                               const invar_tree_input *in) INVAR_MUST_USE;

/* The same without the heap: `scratch` has room for an int64_t of each shard. */
invar_status invar_tree_leaves_with(invar_digest *out, int64_t count, invar_pool *pool,
                                    const invar_tree_input *in, void *scratch) INVAR_MUST_USE;

/*
 * The root above leaf digests that were made piece by piece: of whole shards, one after another.
 * `bytes` and `n_shards` are those of all pieces together. Numbers that no tree has are refused.
 */
invar_status invar_tree_root(invar_digest *out, const invar_digest *leaves, int64_t count,
                             uint64_t bytes, int64_t n_shards) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
