/*
 * row_partition.c - tests that ranks divide rows at token blocks, so that sums keep their bits.
 *
 * For random units, the blocks of all ranks must be those of one rank, in order. The gradient of a
 * norm's weight, folded from all ranks' block sums, must be bit-equal to that of one rank. Control:
 * one sum per rank, added up, gives other bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/row_partition.h"

#include "tests/ops.h"

enum { UNITS = 6, MAX_ROWS = UNITS * 400, COLS = 40, MAX_SIZE = 8 };

/* Random units: empty, and lengths around multiples of a token block. */
static invar_row_offsets random_units(int64_t start[UNITS + 1], uint64_t seed)
{
    static const int64_t lengths[] = {0, 1, 50, 127, 128, 129, 256, 300, 400};

    start[0] = 0;
    for (int u = 0; u < UNITS; u++)
        start[u + 1] = start[u] + lengths[invar_test_random(seed, (uint64_t)u) % 9];
    return (invar_row_offsets){start, UNITS};
}

/* Lists the first row of each token block; returns the number of blocks. */
static int64_t list_blocks(int64_t *out, const invar_row_offsets *units, int64_t first)
{
    int64_t count = 0;

    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = units->offsets[u]; t < units->offsets[u + 1]; t += INVAR_TOKEN_BLOCK)
            out[count++] = first + t;
    return count;
}

static void check_division(const invar_row_offsets *units, int size)
{
    int64_t all[MAX_ROWS], own[MAX_ROWS], start[UNITS + 1], rows = units->offsets[units->count];
    int64_t blocks = list_blocks(all, units, 0), next = 0;

    assert_int_equal(invar_row_partition_blocks(units), blocks);
    for (int r = 0; r < size; r++) {
        invar_row_partition d;
        int64_t count;

        invar_row_partition_init(&d, units, size, r);
        invar_row_partition_units(start, &d, units);
        assert_int_equal(d.block[r], next);
        assert_int_equal(start[0], 0);
        assert_int_equal(start[d.units], invar_row_partition_count(&d));
        count =
            list_blocks(own, &(invar_row_offsets){start, d.units}, invar_row_partition_first(&d));
        assert_int_equal(d.block[r + 1] - d.block[r], count);
        for (int64_t i = 0; i < count; i++)
            assert_int_equal(own[i], all[next + i]);
        next += count;
        assert_true(blocks < size || count > 0);
        assert_true(invar_row_partition_count(&d) <= invar_row_partition_max(rows, size));
        if (rows >= size * size * INVAR_TOKEN_BLOCK)
            assert_true(invar_row_partition_count(&d) <= rows / size + INVAR_TOKEN_BLOCK);
        else if (blocks < size) // rows are not divided
            assert_int_equal(invar_row_partition_max(rows, size), rows);
        assert_int_equal(d.row[size], rows);
    }
    assert_int_equal(next, blocks);
}

/*
 * A group of adjacent ranks has the rows of its ranks; inside a group rows are counted from its
 * first row. `each` is the number of ranks in a group.
 */
static void check_groups(const invar_row_offsets *units, int groups, int each)
{
    for (int r = 0; r < groups * each; r++) {
        invar_row_partition flat, outer, inner;
        int64_t start[UNITS + 1];

        invar_row_partition_init(&flat, units, groups * each, r);
        invar_row_partition_group(&outer, &inner, &flat, units, each);
        assert_int_equal(outer.rank * each + inner.rank, r);
        assert_int_equal(outer.size * inner.size, groups * each);
        assert_int_equal(invar_row_partition_first(&outer) + invar_row_partition_first(&inner),
                         invar_row_partition_first(&flat));
        assert_int_equal(invar_row_partition_count(&inner), invar_row_partition_count(&flat));
        assert_int_equal(inner.row[each], invar_row_partition_count(&outer));
        assert_int_equal(outer.block[outer.rank] + inner.block[inner.rank], flat.block[r]);
        invar_row_partition_units(start, &outer, units);
        assert_int_equal(start[outer.units], invar_row_partition_count(&outer));
        assert_int_equal(invar_row_partition_blocks(&(invar_row_offsets){start, outer.units}),
                         inner.block[each]);
    }
}

static void test_rows__groups_of_ranks(void **state)
{
    int64_t start[UNITS + 1];

    (void)state;
    for (uint64_t seed = 0; seed < 100; seed++) {
        invar_row_offsets units = random_units(start, seed);
        for (int groups = 1; groups <= 4; groups++)
            for (int each = 1; each <= 3; each++)
                check_groups(&units, groups, each);
    }
}

static void test_rows__whole_blocks_for_every_rank(void **state)
{
    int64_t start[UNITS + 1];

    (void)state;
    for (uint64_t seed = 0; seed < 500; seed++) {
        invar_row_offsets units = random_units(start, seed);
        for (int size = 1; size <= MAX_SIZE; size++)
            check_division(&units, size);
    }
}

/* ---- the gradient of a norm's weight --------------------------------------------------------- */

/* Inputs of the backward of a norm. */
typedef struct norm_inputs {
    const invar_device *dev;
    invar_tensor x, dy, dx, weight; /* (T, 1, COLS), weight (COLS) */
    invar_row_offsets units;
} norm_inputs;

static invar_tensor rows_as_heads(const invar_tensor *t, int64_t first, int64_t rows)
{
    return invar_tensor_3d((float *)t->data + first * COLS, INVAR_DTYPE_F32, rows, 1, COLS);
}

/* Runs the backward of some rows with their own units, into `dweight` or into block sums. */
static void norm_backward(const norm_inputs *s, int64_t first, int64_t rows,
                          invar_row_offsets units, const invar_tensor *dweight,
                          const invar_tensor *sums)
{
    invar_rmsnorm_bwd_args args = {.dx = rows_as_heads(&s->dx, first, rows),
                                   .dy = rows_as_heads(&s->dy, first, rows),
                                   .x = rows_as_heads(&s->x, first, rows),
                                   .weight = s->weight,
                                   .units = units,
                                   .eps = 1e-6f};

    if (dweight)
        args.dweight = *dweight;
    if (sums)
        args.block_sums = *sums;
    assert_ok(invar_rmsnorm_bwd(s->dev, &args));
}

/* Initializes a rank's partition and returns the units of its rows. */
static invar_row_offsets rank_units(invar_row_partition *d, int64_t start[UNITS + 1],
                                    const norm_inputs *s, int size, int rank)
{
    invar_row_partition_init(d, &s->units, size, rank);
    invar_row_partition_units(start, d, &s->units);
    return (invar_row_offsets){start, d->units};
}

/* Computes dweight as ranks do: the block sums of all ranks in order, then one fold. */
static void backward_by_blocks(const norm_inputs *s, int size, const invar_tensor *dweight)
{
    int64_t rows = s->units.offsets[s->units.count], start[UNITS + 1];
    invar_tensor sums = invar_test_tensor(
        invar_tensor_2d(NULL, INVAR_DTYPE_F32, invar_token_blocks_max(&s->units, rows), COLS));

    for (int r = 0; r < size; r++) {
        invar_row_partition d;
        invar_row_offsets own = rank_units(&d, start, s, size, r);
        int64_t count = invar_row_partition_count(&d);
        invar_tensor part = invar_test_tensor(
            invar_tensor_2d(NULL, INVAR_DTYPE_F32, invar_token_blocks_max(&own, count), COLS));

        norm_backward(s, invar_row_partition_first(&d), count, own, NULL, &part);
        invar_test_copy_rows(&sums, d.block[r], &part, 0, d.block[r + 1] - d.block[r]);
        invar_test_free(&part);
    }
    assert_ok(invar_token_fold(s->dev, &(invar_token_fold_args){*dweight, sums, s->units, rows}));
    invar_test_free(&sums);
}

/* Computes dweight as one sum per rank, added in rank order. */
static void backward_by_rank(const norm_inputs *s, int size, const invar_tensor *dweight)
{
    int64_t start[UNITS + 1];

    for (int r = 0; r < size; r++) {
        invar_row_partition d;
        invar_row_offsets own = rank_units(&d, start, s, size, r);
        invar_tensor part = invar_test_copy(dweight);

        invar_test_fill(&part, 0.0f);
        norm_backward(s, invar_row_partition_first(&d), invar_row_partition_count(&d), own, &part,
                      NULL);
        for (int64_t i = 0; i < COLS; i++)
            invar_test_set(dweight, 0, i,
                           invar_test_get(dweight, 0, i) + invar_test_get(&part, 0, i));
        invar_test_free(&part);
    }
}

static invar_tensor random_rows(int64_t rows, uint64_t seed)
{
    invar_tensor t = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, rows, COLS));

    invar_test_fill_normal(&t, seed, 1.0f);
    return t;
}

/* Control: one sum per rank, as an all-reduce of gradients would compute it, has other bits. */
static void test_rows__sums_of_blocks_are_those_of_one_rank(void **state)
{
    const invar_tensor vector = invar_tensor_1d(NULL, INVAR_DTYPE_F32, COLS);
    const int64_t start[] = {0, 700, 1300};
    norm_inputs s = {.dev = *state,
                     .x = random_rows(1300, 1),
                     .dy = random_rows(1300, 2),
                     .dx = random_rows(1300, 3),
                     .weight = invar_test_tensor(vector),
                     .units = {start, 2}};

    invar_test_fill_normal(&s.weight, 4, 1.0f);
    for (int size = 2; size <= MAX_SIZE; size *= 2) {
        invar_tensor expected = invar_test_tensor(vector), got = invar_test_tensor(vector);
        invar_tensor each = invar_test_tensor(vector);

        invar_test_fill(&expected, 0.0f);
        invar_test_fill(&got, 0.0f);
        invar_test_fill(&each, 0.0f);
        norm_backward(&s, 0, 1300, s.units, &expected, NULL);
        backward_by_blocks(&s, size, &got);
        backward_by_rank(&s, size, &each);
        invar_assert_bits_tensor(&got, &expected, "dweight of divided rows");
        assert_true(invar_tensors_differ(&each, &expected));
        invar_test_free(&expected, &got, &each);
    }
    invar_test_free(&s.x, &s.dy, &s.dx, &s.weight);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows__whole_blocks_for_every_rank),
        cmocka_unit_test(test_rows__groups_of_ranks),
        cmocka_unit_test(test_rows__sums_of_blocks_are_those_of_one_rank),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
