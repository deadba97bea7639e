/*
 * hash.c - tests of digests, the tree hash and the chain, against the program xxhsum.
 *
 * Every expected digest comes from `xxhsum -H2` of Debian's package xxhash, run over files: leaves,
 * then the digests of each level as files again, up to the root. The oracle uses no code of
 * base/hash.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/support.h"

#define LEAF INVAR_TREE_LEAF_BYTES
#define FANOUT INVAR_TREE_FANOUT

/* (NOISE_BYTES) pseudo-random input of all cases: 1025 leaves and a little more */
static uint8_t *noise;
#define NOISE_BYTES ((size_t)(FANOUT + 1) * LEAF + 64)

/* ---- the oracle ------------------------------------------------------------------------------ */

typedef struct blob {
    const void *data;
    size_t bytes;
} blob;

static char folder[] = INVAR_TEST_WORK "/hash-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    if (system("command -v xxhsum >/dev/null") != 0) {
        print_error("xxhsum is missing, the oracle of these tests: apt-get install xxhash\n");
        return -1;
    }
    if (!mkdtemp(folder)) {
        print_error("%s cannot be created\n", folder);
        return -1;
    }
    if (INVAR_ALLOC(noise, NOISE_BYTES, "noise") != INVAR_OK)
        return -1;
    for (size_t i = 0; i < NOISE_BYTES; i++)
        noise[i] = (uint8_t)((i * UINT64_C(0x9E3779B97F4A7C15)) >> 40);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    invar_free(noise);
    return rmdir(folder);
}

static void file_name(char *out, size_t size, int64_t number)
{
    snprintf(out, size, "%s/%08lld", folder, (long long)number); // the shell sorts by number
}

static void write_file(int64_t number, blob b)
{
    char name[sizeof folder + 32];
    FILE *stream;

    file_name(name, sizeof name, number);
    stream = fopen(name, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(b.data ? b.data : "", 1, b.bytes, stream), b.bytes);
    assert_int_equal(fclose(stream), 0);
}

/* Hashes all blobs with one process of xxhsum. */
static void oracle_hash(invar_digest *out, const blob *blobs, int64_t count)
{
    char command[sizeof folder + 64], name[sizeof folder + 32], text[80];
    FILE *output;

    for (int64_t i = 0; i < count; i++)
        write_file(i, blobs[i]);
    snprintf(command, sizeof command, "cd '%s' && LC_ALL=C xxhsum -H2 * 2>/dev/null", folder);
    output = popen(command, "r");
    assert_non_null(output);
    for (int64_t i = 0; i < count; i++) {
        assert_non_null(fgets(text, sizeof text, output));
        assert_int_equal(strspn(text, "0123456789abcdef"), 32);
        assert_int_equal(strtoll(text + 34, NULL, 10), i);
        text[32] = '\0';
        assert_ok(invar_digest_parse(&out[i], text));
    }
    assert_int_equal(pclose(output), 0);
    for (int64_t i = 0; i < count; i++) {
        file_name(name, sizeof name, i);
        assert_int_equal(unlink(name), 0);
    }
}

/* Computes the root of the leaf digests, level by level. */
static void oracle_root(invar_digest *out, const invar_digest *leaves, int64_t count,
                        uint64_t bytes, uint64_t n_shards)
{
    invar_digest *level, *next;
    blob *blobs;
    uint8_t head[32];

    assert_ok(INVAR_ALLOC(level, (size_t)count + 1, "level"));
    assert_ok(INVAR_ALLOC(next, (size_t)count + 1, "level"));
    assert_ok(INVAR_ALLOC(blobs, (size_t)count + 1, "level"));
    memcpy(level, leaves, (size_t)count * sizeof *level);
    if (count == 0)
        oracle_hash(level, &(blob){NULL, 0}, 1);
    while (count > 1) {
        int64_t parents = (count + FANOUT - 1) / FANOUT;
        for (int64_t i = 0; i < parents; i++) {
            int64_t children = i + 1 < parents ? FANOUT : count - i * FANOUT;
            blobs[i] = (blob){level + i * FANOUT, (size_t)children * sizeof *level};
        }
        oracle_hash(next, blobs, parents);
        memcpy(level, next, (size_t)parents * sizeof *level);
        count = parents;
    }
    for (int i = 0; i < 8; i++) {
        head[i] = (uint8_t)(bytes >> 8 * i);
        head[8 + i] = (uint8_t)(n_shards >> 8 * i);
    }
    memcpy(head + 16, level, 16);
    oracle_hash(out, &(blob){head, sizeof head}, 1);
    invar_free(level);
    invar_free(next);
    invar_free(blobs);
}

/* Hashes the leaves of contiguous shards and returns their number. The caller frees *out. */
static int64_t oracle_leaves(invar_digest **out, const blob *shards, int64_t n_shards)
{
    int64_t count = 0, leaf = 0;
    blob *blobs;

    for (int64_t i = 0; i < n_shards; i++)
        count += (int64_t)((shards[i].bytes + LEAF - 1) / LEAF);
    assert_ok(INVAR_ALLOC(*out, (size_t)count, "leaves"));
    assert_ok(INVAR_ALLOC(blobs, (size_t)count, "leaves"));
    for (int64_t i = 0; i < n_shards; i++) {
        for (size_t begin = 0; begin < shards[i].bytes; begin += LEAF) {
            size_t left = shards[i].bytes - begin;
            blobs[leaf++] = (blob){(const char *)shards[i].data + begin, left < LEAF ? left : LEAF};
        }
    }
    if (count > 0)
        oracle_hash(*out, blobs, count);
    invar_free(blobs);
    return count;
}

/* ---- helpers --------------------------------------------------------------------------------- */

static void assert_digest(const invar_digest *got, const invar_digest *expected, const char *what)
{
    char a[INVAR_DIGEST_HEX_SIZE], b[INVAR_DIGEST_HEX_SIZE];

    if (invar_digest_equal(got, expected))
        return;
    invar_digest_format(a, got);
    invar_digest_format(b, expected);
    fail_msg("%s: got %s, expected %s", what, a, b);
}

static invar_tree_shard contiguous(const void *data, size_t bytes)
{
    return (invar_tree_shard){data, 1, bytes, bytes};
}

static void tree_of(invar_digest *out, invar_pool *pool, const invar_tree_shard *shards,
                    int64_t n_shards)
{
    invar_tree_input in = {shards, n_shards};

    assert_ok(invar_tree_hash(out, pool, &in));
}

#define MAX_SHARDS 16

/* Compares root, leaf count and leaves of contiguous shards with the oracle. */
static void check_tree(const blob *blobs, int64_t n_shards)
{
    invar_tree_shard shards[MAX_SHARDS];
    invar_tree_input in = {shards, n_shards};
    invar_digest got, expected, *leaves, *got_leaves;
    uint64_t bytes = 0;
    int64_t count, got_count;

    for (int64_t i = 0; i < n_shards; i++) {
        shards[i] = contiguous(blobs[i].data, blobs[i].bytes);
        bytes += blobs[i].bytes;
    }
    count = oracle_leaves(&leaves, blobs, n_shards);
    assert_ok(invar_tree_leaf_count(&got_count, &in));
    assert_int_equal(got_count, count);
    assert_ok(INVAR_ALLOC(got_leaves, (size_t)count, "leaves"));
    assert_ok(invar_tree_leaves(got_leaves, count, NULL, &in));
    for (int64_t i = 0; i < count; i++)
        assert_digest(&got_leaves[i], &leaves[i], "leaf");
    oracle_root(&expected, leaves, count, bytes, (uint64_t)n_shards);
    tree_of(&got, NULL, shards, n_shards);
    assert_digest(&got, &expected, "root");
    assert_ok(invar_tree_root(&got, got_leaves, count, bytes, n_shards));
    assert_digest(&got, &expected, "root of the leaves");
    for (int64_t i = 0; i < count; i++)
        assert_digest(&got_leaves[i], &leaves[i], "leaf after the root was made");
    invar_free(leaves);
    invar_free(got_leaves);
}

/* ---- bytes and digests ----------------------------------------------------------------------- */

static void test_base_hash__bytes_match_xxhsum(void **state)
{
    // sizes around the case distinctions of XXH3 and around the leaf size
    static const size_t sizes[] = {0,   1,   3,   4,    8,    9,     16,    17,    128,   129,
                                   240, 241, 256, 1024, 1025, 16383, 16384, 16385, 100000};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    blob blobs[COUNT];
    invar_digest got, expected[COUNT];

    (void)state;
    for (size_t i = 0; i < COUNT; i++)
        blobs[i] = (blob){noise + i, sizes[i]};
    oracle_hash(expected, blobs, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        invar_hash_bytes(&got, blobs[i].data, blobs[i].bytes);
        assert_digest(&got, &expected[i], "bytes");
    }
    invar_hash_bytes(&got, NULL, 0);
    assert_digest(&got, &expected[0], "no bytes");
}

static void test_base_hash__chunked_updates_give_the_same_digest(void **state)
{
    static const size_t chunk_sizes[] = {1, 7, 64, 255, 256, 257, 1000, 5000};
    const size_t bytes = 20000;
    invar_digest expected, got;
    invar_hasher hasher;

    (void)state;
    invar_hash_bytes(&expected, noise, bytes);
    for (size_t i = 0; i < sizeof chunk_sizes / sizeof chunk_sizes[0]; i++) {
        invar_hasher_init(&hasher);
        for (size_t offset = 0; offset < bytes; offset += chunk_sizes[i]) {
            invar_hasher_update(&hasher, NULL, 0);
            invar_hasher_update(&hasher, noise + offset,
                                bytes - offset < chunk_sizes[i] ? bytes - offset : chunk_sizes[i]);
            invar_hasher_final(&got, &hasher); // does not change the state of the hasher
        }
        assert_digest(&got, &expected, "pieces");
    }
}

static void test_base_hash__chain_matches_xxhsum(void **state)
{
    invar_digest chain = {{0}}, root, expected, both[2];

    (void)state;
    for (int step = 0; step < 3; step++) {
        invar_hash_bytes(&root, noise + step, 100);
        both[0] = chain;
        both[1] = root;
        oracle_hash(&expected, &(blob){both, sizeof both}, 1);
        invar_digest_chain(&chain, &root);
        assert_digest(&chain, &expected, "chain");
    }
}

static void test_base_hash__digest_text_round_trips(void **state)
{
    invar_digest digest, read_back;
    char text[INVAR_DIGEST_HEX_SIZE];

    (void)state;
    assert_ok(invar_digest_parse(&digest, "99aa06d3014798d86001c324468d497f"));
    assert_int_equal(digest.bytes[0], 0x99); // big-endian: bytes in the order of the digits
    assert_int_equal(digest.bytes[15], 0x7f);
    invar_digest_format(text, &digest);
    assert_string_equal(text, "99aa06d3014798d86001c324468d497f");
    assert_ok(invar_digest_read(&read_back, "99aa06d3014798d86001c324468d497f"));
    assert_true(invar_digest_equal(&read_back, &digest));
    assert_fails(invar_digest_read(&read_back, "99aa06d3014798d86001c324468d497F"), INVAR_E_INVALID,
                 "not in lower-case digits");
    assert_fails(invar_digest_read(&read_back, "99aa"), INVAR_E_INVALID, "32 hexadecimal");
    assert_ok(invar_digest_parse(&read_back, "99AA06D3014798D86001C324468D497F"));
    assert_true(invar_digest_equal(&digest, &read_back));
    read_back.bytes[15] ^= 1;
    assert_false(invar_digest_equal(&digest, &read_back));
}

static void test_base_hash__rejects_what_is_not_a_digest(void **state)
{
    static const char *const texts[] = {"",
                                        "9",
                                        "99aa06d3014798d86001c324468d497",
                                        "99aa06d3014798d86001c324468d497f0",
                                        "99aa06d3014798d86001c324468d497g",
                                        " 9aa06d3014798d86001c324468d497f",
                                        "0x99aa06d3014798d86001c324468d49"};
    invar_digest digest = {{1}}, before = digest;

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_fails(invar_digest_parse(&digest, texts[i]), INVAR_E_INVALID, "32 hexadecimal");
    assert_true(invar_digest_equal(&digest, &before));
}

/* ---- the tree -------------------------------------------------------------------------------- */

static void test_base_hash__tree_of_one_shard_matches_xxhsum(void **state)
{
    static const size_t sizes[] = {0,        1,        LEAF - 1,        LEAF,
                                   LEAF + 1, 2 * LEAF, (2 * LEAF) + 17, 9 * LEAF - 1};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_tree(&(blob){noise + i, sizes[i]}, 1);
}

static void test_base_hash__tree_matches_xxhsum_around_the_fanout(void **state)
{
    static const size_t full = (size_t)FANOUT * LEAF;
    const size_t sizes[] = {full - LEAF, full - 1, full, full + 1, full + LEAF};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_tree(&(blob){noise, sizes[i]}, 1);
}

static void test_base_hash__tree_of_shards_matches_xxhsum(void **state)
{
    const blob shards[] = {{noise, LEAF + 1}, {NULL, 0},         {noise + 5, 1},
                           {NULL, 0},         {NULL, 0},         {noise + 77, 3 * LEAF},
                           {noise, LEAF},     {noise, LEAF - 1}, {noise + 1, 20 * LEAF + 3},
                           {NULL, 0}};

    (void)state;
    check_tree(shards, 0);
    for (int64_t n = 1; n <= 10; n++)
        check_tree(shards, n);
    check_tree(shards + 1, 1);
    check_tree(shards + 3, 2);
}

/* More than 1024 * 1024 leaves: a tree of four levels, of shards with one byte each. */
static void test_base_hash__deep_tree_matches_xxhsum(void **state)
{
    int64_t count = (int64_t)FANOUT * FANOUT + 1;
    invar_digest bytes_digest[256], *leaves, got, expected;
    invar_tree_shard *shards;
    uint8_t bytes[256];
    blob blobs[256];
    invar_pool *pool;

    (void)state;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (uint8_t)i;
        blobs[i] = (blob){&bytes[i], 1};
    }
    oracle_hash(bytes_digest, blobs, 256);
    assert_ok(INVAR_ALLOC(shards, (size_t)count, "shards"));
    assert_ok(INVAR_ALLOC(leaves, (size_t)count, "leaves"));
    for (int64_t i = 0; i < count; i++) {
        shards[i] = contiguous(&bytes[noise[i]], 1);
        leaves[i] = bytes_digest[noise[i]];
    }
    oracle_root(&expected, leaves, count, (uint64_t)count, (uint64_t)count);
    assert_ok(invar_pool_new(&pool, 2));
    tree_of(&got, pool, shards, count);
    assert_digest(&got, &expected, "root");
    assert_ok(invar_tree_root(&got, leaves, count, (uint64_t)count, count));
    assert_digest(&got, &expected, "root of the leaves");
    invar_pool_free(pool);
    invar_free(shards);
    invar_free(leaves);
}

static void test_base_hash__padding_between_rows_is_not_hashed(void **state)
{
    static const size_t row_sizes[] = {1, 2, 7, 256, 1000, LEAF - 1, LEAF, LEAF + 1, 50000};
    const size_t bytes = 100000;
    invar_digest expected, got;
    uint8_t *padded;

    (void)state;
    for (size_t i = 0; i < sizeof row_sizes / sizeof row_sizes[0]; i++) {
        size_t row_bytes = row_sizes[i], rows = bytes / row_bytes;
        invar_tree_shard shard = contiguous(noise, rows * row_bytes);

        tree_of(&expected, NULL, &shard, 1);
        for (size_t padding = 0; padding < 300; padding += 149) {
            size_t stride = row_bytes + padding;
            // no padding after the last row, so that AddressSanitizer detects a read past it
            assert_ok(INVAR_ALLOC(padded, (rows - 1) * stride + row_bytes, "padded"));
            memset(padded, (int)(padding & 255), (rows - 1) * stride + row_bytes);
            for (size_t row = 0; row < rows; row++)
                memcpy(padded + row * stride, noise + row * row_bytes, row_bytes);
            shard = (invar_tree_shard){padded, (int64_t)rows, row_bytes, stride};
            tree_of(&got, NULL, &shard, 1);
            assert_digest(&got, &expected, "padded rows");
            invar_free(padded);
        }
    }
}

static void test_base_hash__tree_is_invariant_to_threads(void **state)
{
    static const int threads[] = {1, 2, 3, 8};
    invar_tree_shard shards[] = {{noise, 333, 3000, 3100},
                                 contiguous(noise, (size_t)300 * LEAF + 5),
                                 contiguous(NULL, 0),
                                 {noise + 3, 77, LEAF + 9, LEAF + 64}};
    invar_tree_input in = {shards, 4};
    invar_digest expected, got, *leaves, *got_leaves;
    int64_t count;

    (void)state;
    tree_of(&expected, NULL, shards, 4);
    assert_ok(invar_tree_leaf_count(&count, &in));
    assert_ok(INVAR_ALLOC(leaves, (size_t)count, "leaves"));
    assert_ok(INVAR_ALLOC_SIZED(got_leaves, (size_t)count, sizeof *leaves, "leaves"));
    assert_ok(invar_tree_leaves(leaves, count, NULL, &in));
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
        invar_pool *pool;
        assert_ok(invar_pool_new(&pool, threads[i]));
        tree_of(&got, pool, shards, 4);
        assert_digest(&got, &expected, "root");
        assert_ok(invar_tree_leaves(got_leaves, count, pool, &in));
        assert_memory_equal(got_leaves, leaves, (size_t)count * sizeof *leaves);
        invar_pool_free(pool);
    }
    invar_free(leaves);
    invar_free(got_leaves);
}

/* Control: one flipped bit changes the root and exactly one leaf. */
static void test_base_hash__one_bit_changes_the_root_and_one_leaf(void **state)
{
    size_t bytes = 40 * LEAF + 100, offset = 17 * LEAF + 4321;
    invar_tree_shard shard = contiguous(noise, bytes);
    invar_tree_input in = {&shard, 1};
    invar_digest before, after, leaves_before[41], leaves_after[41];

    (void)state;
    tree_of(&before, NULL, &shard, 1);
    assert_ok(invar_tree_leaves(leaves_before, 41, NULL, &in));
    noise[offset] ^= 1;
    tree_of(&after, NULL, &shard, 1);
    assert_ok(invar_tree_leaves(leaves_after, 41, NULL, &in));
    noise[offset] ^= 1;
    assert_false(invar_digest_equal(&before, &after));
    for (int i = 0; i < 41; i++)
        assert_int_equal(invar_digest_equal(&leaves_before[i], &leaves_after[i]), i != 17);
}

/* Control: other shard boundaries must give another root. */
static void test_base_hash__number_of_shards_changes_the_root(void **state)
{
    invar_tree_shard one = contiguous(noise, 2 * LEAF);
    invar_tree_shard two[2] = {contiguous(noise, LEAF), contiguous(noise + LEAF, LEAF)};
    invar_tree_shard uneven[2] = {contiguous(noise, 100), contiguous(noise + 100, 2 * LEAF - 100)};
    invar_digest a, b, c;

    (void)state;
    tree_of(&a, NULL, &one, 1);
    tree_of(&b, NULL, two, 2);
    tree_of(&c, NULL, uneven, 2);
    assert_false(invar_digest_equal(&a, &b));
    assert_false(invar_digest_equal(&b, &c));
}

static void test_base_hash__rejects_impossible_shards(void **state)
{
    static const struct {
        invar_tree_shard shard;
        const char *text;
    } cases[] = {
        {{"x", -1, 1, 1}, "shard 1 has -1 rows"},
        {{NULL, 1, 1, 1}, "shard 1 has no data"},
        {{"x", 2, 8, 7}, "shard 1: a stride of 7 bytes for rows of 8 bytes"},
        {{"x", 1, SIZE_MAX, SIZE_MAX}, "shard 1 is larger than memory"},
        {{"x", INT64_MAX, 2, 2}, "shard 1 is larger than memory"},
        {{"x", INT64_MAX, 1, 1}, "more than 2^63 bytes up to shard 1"},
    };
    invar_digest digest;
    int64_t count;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        invar_tree_shard shards[2] = {contiguous("y", 1), cases[i].shard};
        invar_tree_input in = {shards, 2};
        assert_fails(invar_tree_hash(&digest, NULL, &in), INVAR_E_INVALID, cases[i].text);
        assert_fails(invar_tree_leaf_count(&count, &in), INVAR_E_INVALID, cases[i].text);
        assert_fails(invar_tree_leaves(&digest, 1, NULL, &in), INVAR_E_INVALID, cases[i].text);
    }
    assert_fails(invar_tree_hash(&digest, NULL, &(invar_tree_input){NULL, 1}), INVAR_E_INVALID,
                 "1 shards at NULL");
    assert_fails(invar_tree_hash(&digest, NULL, &(invar_tree_input){NULL, -1}), INVAR_E_INVALID,
                 "-1 shards");
}

static void test_base_hash__rejects_too_few_leaf_slots(void **state)
{
    invar_tree_shard shard = contiguous(noise, LEAF + 1);
    invar_tree_input in = {&shard, 1};
    invar_digest leaves[2];

    (void)state;
    assert_fails(invar_tree_leaves(leaves, 1, NULL, &in), INVAR_E_INVALID,
                 "room for 1 digests; there are 2");
    assert_ok(invar_tree_leaves(leaves, 2, NULL, &in));
}

/*
 * Leaves computed for 1 to 6 shards at a time give the root of all shards. Controls: another number
 * of shards and a changed leaf give other roots.
 */
static void test_base_hash__root_is_invariant_to_batches_of_shards(void **state)
{
    invar_tree_shard shards[] = {contiguous(noise, LEAF + 1), contiguous(NULL, 0),
                                 {noise, 40, 1000, 1024},     contiguous(noise + 9, 3 * LEAF),
                                 contiguous(noise + 3, 1),    contiguous(noise + 1, 7 * LEAF - 1)};
    enum { COUNT = sizeof shards / sizeof shards[0] };
    invar_digest expected, got, leaves[64];

    (void)state;
    tree_of(&expected, NULL, shards, COUNT);
    for (int64_t batch = 1; batch <= COUNT; batch++) {
        int64_t used = 0, count;
        uint64_t bytes = 0;
        for (int64_t i = 0; i < COUNT; i += batch) {
            invar_tree_input in = {shards + i, COUNT - i < batch ? COUNT - i : batch};
            assert_ok(invar_tree_leaf_count(&count, &in));
            assert_ok(invar_tree_leaves(leaves + used, count, NULL, &in));
            used += count;
        }
        for (int64_t i = 0; i < COUNT; i++)
            bytes += (uint64_t)shards[i].rows * shards[i].row_bytes;
        assert_ok(invar_tree_root(&got, leaves, used, bytes, COUNT));
        assert_digest(&got, &expected, "root of pieces");
        assert_ok(invar_tree_root(&got, leaves, used, bytes, COUNT + 1));
        assert_false(invar_digest_equal(&got, &expected));
        leaves[used - 1].bytes[0] ^= 1;
        assert_ok(invar_tree_root(&got, leaves, used, bytes, COUNT));
        assert_false(invar_digest_equal(&got, &expected));
    }
}

static void test_base_hash__rejects_impossible_leaf_counts(void **state)
{
    static const struct {
        int64_t count;
        uint64_t bytes;
        int64_t n_shards;
    } cases[] = {{-1, 0, 0}, {0, 1, 1},        {1, LEAF + 1, 1}, {3, LEAF + 1, 0},
                 {2, 1, 4},  {5, LEAF + 1, 2}, {0, 0, -1},       {1, 0, 1}};
    invar_digest leaves[8] = {{{0}}}, got;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_fails(
            invar_tree_root(&got, leaves, cases[i].count, cases[i].bytes, cases[i].n_shards),
            INVAR_E_INVALID, "cannot be");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_hash__bytes_match_xxhsum),
        cmocka_unit_test(test_base_hash__chunked_updates_give_the_same_digest),
        cmocka_unit_test(test_base_hash__chain_matches_xxhsum),
        cmocka_unit_test(test_base_hash__digest_text_round_trips),
        cmocka_unit_test(test_base_hash__rejects_what_is_not_a_digest),
        cmocka_unit_test(test_base_hash__tree_of_one_shard_matches_xxhsum),
        cmocka_unit_test(test_base_hash__tree_matches_xxhsum_around_the_fanout),
        cmocka_unit_test(test_base_hash__tree_of_shards_matches_xxhsum),
        cmocka_unit_test(test_base_hash__deep_tree_matches_xxhsum),
        cmocka_unit_test(test_base_hash__padding_between_rows_is_not_hashed),
        cmocka_unit_test(test_base_hash__tree_is_invariant_to_threads),
        cmocka_unit_test(test_base_hash__one_bit_changes_the_root_and_one_leaf),
        cmocka_unit_test(test_base_hash__number_of_shards_changes_the_root),
        cmocka_unit_test(test_base_hash__rejects_impossible_shards),
        cmocka_unit_test(test_base_hash__rejects_too_few_leaf_slots),
        cmocka_unit_test(test_base_hash__root_is_invariant_to_batches_of_shards),
        cmocka_unit_test(test_base_hash__rejects_impossible_leaf_counts),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
