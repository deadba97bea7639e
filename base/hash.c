/*
 * hash.c - digests of bytes, of tensors (tree hash) and of histories (chain).
 *
 * The only file that includes xxhash.h. The library is compiled in and not linked, because a shared
 * object of a distribution is built for the oldest processor of its architecture (Debian 12 on
 * aarch64: a third slower).
 *
 * Leaves are hashed in parallel, in place, each by one thread. The levels above them, a thousandth
 * of the work, are hashed by the caller. No digest depends on the thread that computes it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/hash.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "canonical bytes are little-endian; this host would have to swap every element"
#endif

_Static_assert(sizeof(invar_digest) == sizeof(XXH128_canonical_t), "digest is the canonical form");
_Static_assert(sizeof(invar_hasher) >= sizeof(XXH3_state_t), "hasher is too small");
_Static_assert(alignof(invar_hasher) >= alignof(XXH3_state_t), "hasher is not aligned");

/* ---- digests --------------------------------------------------------------------------------- */

const char *invar_digest_format(char out[INVAR_DIGEST_HEX_SIZE], const invar_digest *digest)
{
    static const char digits[] = "0123456789abcdef";

    for (int i = 0; i < 16; i++) {
        out[2 * i] = digits[digest->bytes[i] >> 4];
        out[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    out[32] = '\0';
    return out;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

invar_status invar_digest_parse(invar_digest *out, const char *hex)
{
    invar_digest digest;

    // a digit is read only if the previous one is valid, so a short text is not read past its end
    for (int i = 0; i < 16; i++) {
        int high = hex_value(hex[2 * i]);
        int low = high < 0 ? -1 : hex_value(hex[2 * i + 1]);
        if (low < 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "digest: not 32 hexadecimal digits: %.40s", hex);
        digest.bytes[i] = (uint8_t)(high << 4 | low);
    }
    if (hex[32] != '\0')
        return INVAR_FAIL(INVAR_E_INVALID, 0, "digest: more than 32 hexadecimal digits: %.40s",
                          hex);
    *out = digest;
    return INVAR_OK;
}

invar_status invar_digest_read(invar_digest *out, const char *hex)
{
    char again[INVAR_DIGEST_HEX_SIZE];
    invar_digest digest;

    INVAR_TRY(invar_digest_parse(&digest, hex));
    invar_digest_format(again, &digest);
    if (memcmp(hex, again, sizeof again) != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "digest: not in lower-case digits: %s", hex);
    *out = digest;
    return INVAR_OK;
}

bool invar_digest_equal(const invar_digest *a, const invar_digest *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

void invar_digest_chain(invar_digest *chain, const invar_digest *root)
{
    invar_digest both[2] = {*chain, *root};

    invar_hash_bytes(chain, both, sizeof both);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static void digest_from_xxh(invar_digest *out, XXH128_hash_t hash)
{
    XXH128_canonical_t bytes;

    XXH128_canonicalFromHash(&bytes, hash);
    memcpy(out->bytes, bytes.digest, sizeof out->bytes);
}

void invar_hash_bytes(invar_digest *out, const void *data, size_t bytes)
{
    digest_from_xxh(out, XXH3_128bits(data, bytes));
}

void invar_hasher_init(invar_hasher *hasher)
{
    (void)XXH3_128bits_reset((XXH3_state_t *)(void *)hasher->state); // fails on NULL only
}

void invar_hasher_update(invar_hasher *hasher, const void *data, size_t bytes)
{
    if (bytes > 0)
        (void)XXH3_128bits_update((XXH3_state_t *)(void *)hasher->state, data, bytes);
}

void invar_hasher_final(invar_digest *out, const invar_hasher *hasher)
{
    digest_from_xxh(out, XXH3_128bits_digest((const XXH3_state_t *)(const void *)hasher->state));
}

/* ---- the tree hash --------------------------------------------------------------------------- */

/* Leaves per task: enough to hide the cost of a task, few enough to use all threads. */
#define TASK_LEAVES 16

typedef struct tree {
    const invar_tree_input *in;
    uint64_t bytes;
    int64_t n_leaves;
    int64_t *first_leaf;  /* (n_shards) number of the first leaf of each shard */
    invar_digest *leaves; /* (n_leaves) leaf digests */
} tree;

static uint64_t shard_bytes(const invar_tree_shard *shard)
{
    return (uint64_t)shard->rows * shard->row_bytes;
}

static int64_t shard_leaves(const invar_tree_shard *shard)
{
    uint64_t bytes = shard_bytes(shard);

    return (int64_t)(bytes / INVAR_TREE_LEAF_BYTES + (bytes % INVAR_TREE_LEAF_BYTES != 0));
}

/* Checks a shard; no product of the fields of a valid shard overflows. */
static invar_status check_shard(const invar_tree_shard *shard, int64_t number)
{
    size_t steps;

    if (shard->rows < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "tree hash: shard %lld has %lld rows",
                          (long long)number, (long long)shard->rows);
    if (shard->rows == 0 || shard->row_bytes == 0)
        return INVAR_OK;
    if (!shard->data)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "tree hash: shard %lld has no data",
                          (long long)number);
    if (shard->row_stride_bytes < shard->row_bytes)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "tree hash: shard %lld: a stride of %zu bytes for rows of %zu bytes",
                          (long long)number, shard->row_stride_bytes, shard->row_bytes);
    steps = (size_t)(shard->rows - 1);
    if (shard->row_bytes > PTRDIFF_MAX ||
        steps > (PTRDIFF_MAX - shard->row_bytes) / shard->row_stride_bytes)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "tree hash: shard %lld is larger than memory",
                          (long long)number);
    return INVAR_OK;
}

/* Checks the input and adds up `bytes` and `n_leaves`; allocates nothing. */
static invar_status tree_measure(tree *t, const invar_tree_input *in)
{
    memset(t, 0, sizeof *t);
    t->in = in;
    if (in->n_shards < 0 || (in->n_shards > 0 && !in->shards))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "tree hash: %lld shards at %s",
                          (long long)in->n_shards, in->shards ? "an address" : "NULL");
    for (int64_t i = 0; i < in->n_shards; i++) {
        INVAR_TRY(check_shard(&in->shards[i], i));
        if (shard_bytes(&in->shards[i]) > INT64_MAX - t->bytes)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "tree hash: more than 2^63 bytes up to shard %lld", (long long)i);
        t->bytes += shard_bytes(&in->shards[i]);
        t->n_leaves += shard_leaves(&in->shards[i]);
    }
    return INVAR_OK;
}

static void hash_leaf(invar_digest *out, const invar_tree_shard *shard, int64_t leaf)
{
    const char *data = shard->data;
    uint64_t begin = (uint64_t)leaf * INVAR_TREE_LEAF_BYTES;
    uint64_t left = shard_bytes(shard) - begin;
    uint64_t row = begin / shard->row_bytes;
    size_t column = (size_t)(begin % shard->row_bytes);
    XXH3_state_t state;

    if (left > INVAR_TREE_LEAF_BYTES)
        left = INVAR_TREE_LEAF_BYTES;
    data += row * shard->row_stride_bytes + column;
    if (shard->row_stride_bytes == shard->row_bytes || left <= shard->row_bytes - column) {
        invar_hash_bytes(out, data, (size_t)left);
        return;
    }
    (void)XXH3_128bits_reset(&state);
    while (left > 0) {
        size_t piece = shard->row_bytes - column;
        if (piece > left)
            piece = (size_t)left;
        (void)XXH3_128bits_update(&state, data, piece);
        left -= piece;
        if (left > 0) // after the last row the address may be past the end of the data
            data += shard->row_stride_bytes - column;
        column = 0;
    }
    digest_from_xxh(out, XXH3_128bits_digest(&state));
}

/* Returns the shard of a leaf: the last one whose first leaf is not after it. */
static int64_t find_shard(const tree *t, int64_t leaf)
{
    int64_t low = 0, high = t->in->n_shards; // first_leaf[low] <= leaf < first_leaf[high]

    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (t->first_leaf[middle] <= leaf)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static invar_status hash_leaves(void *payload, int64_t task, int worker)
{
    const tree *t = payload;
    int64_t leaf = task * TASK_LEAVES;
    int64_t end = t->n_leaves - leaf > TASK_LEAVES ? leaf + TASK_LEAVES : t->n_leaves;

    (void)worker;
    while (leaf < end) {
        int64_t shard = find_shard(t, leaf);
        hash_leaf(&t->leaves[leaf], &t->in->shards[shard], leaf - t->first_leaf[shard]);
        leaf++;
    }
    return INVAR_OK;
}

/* Computes all leaf digests. The caller provides the memory of t->leaves and t->first_leaf. */
static invar_status hash_all_leaves(tree *t, invar_pool *pool)
{
    int64_t tasks = t->n_leaves / TASK_LEAVES + (t->n_leaves % TASK_LEAVES != 0);
    int64_t leaf = 0;

    for (int64_t i = 0; i < t->in->n_shards; i++) {
        t->first_leaf[i] = leaf;
        leaf += shard_leaves(&t->in->shards[i]);
    }
    return invar_pool_run(pool, tasks, hash_leaves, t);
}

/*
 * Hashes the digests level by level to `top`. `inner` has the capacity of the lowest level above
 * `nodes`; it may be `nodes` itself, because a parent is written to or before its first child.
 */
static void fold_tree_levels(invar_digest *top, invar_digest *inner, const invar_digest *nodes,
                             int64_t count)
{
    if (count == 0) {
        invar_hash_bytes(top, NULL, 0);
        return;
    }
    while (count > 1) {
        int64_t parents = 0;
        for (int64_t i = 0; i < count; i += INVAR_TREE_FANOUT) {
            int64_t children = count - i < INVAR_TREE_FANOUT ? count - i : INVAR_TREE_FANOUT;
            invar_hash_bytes(&inner[parents++], &nodes[i], (size_t)children * sizeof *nodes);
        }
        nodes = inner;
        count = parents;
    }
    *top = nodes[0];
}

static void digest_root(invar_digest *out, const invar_digest *top, uint64_t bytes,
                        int64_t n_shards)
{
    struct {
        uint64_t bytes;
        uint64_t n_shards;
        invar_digest top;
    } head = {bytes, (uint64_t)n_shards, *top};

    invar_hash_bytes(out, &head, sizeof head);
}

static size_t leaves_bytes(const tree *t)
{
    return (size_t)t->n_leaves * sizeof *t->leaves;
}

invar_status invar_tree_scratch(size_t *out, const invar_tree_input *in)
{
    tree t;

    INVAR_TRY(tree_measure(&t, in));
    *out = leaves_bytes(&t) + (size_t)in->n_shards * sizeof *t.first_leaf;
    return INVAR_OK;
}

invar_status invar_tree_hash_with(invar_digest *out, invar_pool *pool, const invar_tree_input *in,
                                  void *scratch)
{
    invar_digest top;
    tree t;

    INVAR_TRY(tree_measure(&t, in));
    t.leaves = scratch;
    t.first_leaf = (int64_t *)(void *)((char *)scratch + leaves_bytes(&t));
    INVAR_TRY(hash_all_leaves(&t, pool));
    fold_tree_levels(&top, t.leaves, t.leaves, t.n_leaves);
    digest_root(out, &top, t.bytes, in->n_shards);
    return INVAR_OK;
}

invar_status invar_tree_hash(invar_digest *out, invar_pool *pool, const invar_tree_input *in)
{
    INVAR_AUTO_FREE void *scratch = NULL;
    size_t bytes;

    INVAR_TRY(invar_tree_scratch(&bytes, in));
    INVAR_TRY(invar_alloc(&scratch, 1, bytes, "tree hash"));
    return invar_tree_hash_with(out, pool, in, scratch);
}

invar_status invar_tree_leaf_count(int64_t *out, const invar_tree_input *in)
{
    tree t;

    INVAR_TRY(tree_measure(&t, in));
    *out = t.n_leaves;
    return INVAR_OK;
}

invar_status invar_tree_leaves_with(invar_digest *out, int64_t count, invar_pool *pool,
                                    const invar_tree_input *in, void *scratch)
{
    tree t;

    INVAR_TRY(tree_measure(&t, in));
    if (count != t.n_leaves)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "tree hash: room for %lld digests; there are %lld",
                          (long long)count, (long long)t.n_leaves);
    t.leaves = out;
    t.first_leaf = scratch;
    return hash_all_leaves(&t, pool);
}

invar_status invar_tree_leaves(invar_digest *out, int64_t count, invar_pool *pool,
                               const invar_tree_input *in)
{
    INVAR_AUTO_FREE void *scratch = NULL;

    INVAR_TRY(invar_alloc(&scratch, in->n_shards > 0 ? (size_t)in->n_shards : 0, sizeof(int64_t),
                          "tree hash"));
    return invar_tree_leaves_with(out, count, pool, in, scratch);
}

invar_status invar_tree_root(invar_digest *out, const invar_digest *leaves, int64_t count,
                             uint64_t bytes, int64_t n_shards)
{
    uint64_t full = bytes / INVAR_TREE_LEAF_BYTES + (bytes % INVAR_TREE_LEAF_BYTES != 0);
    invar_digest *inner, top;

    // a leaf has at least one byte, and each shard may end with an incomplete leaf
    if (count < 0 || n_shards < 0 || (uint64_t)count < full || (uint64_t)count > bytes ||
        (uint64_t)count - full > (uint64_t)n_shards)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "tree hash: %lld leaves of %llu bytes in %lld shards cannot be",
                          (long long)count, (unsigned long long)bytes, (long long)n_shards);
    INVAR_TRY(INVAR_ALLOC(inner, (size_t)count / INVAR_TREE_FANOUT + 1, "tree hash"));
    fold_tree_levels(&top, inner, leaves, count);
    invar_free(inner);
    digest_root(out, &top, bytes, n_shards);
    return INVAR_OK;
}
