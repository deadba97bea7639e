/*
 * context.c - tests of context parallelism: exchange of rows and columns between ranks.
 *
 * Ranks that divide rows exchange them for column shards of all rows and back; every element must
 * arrive unchanged. Negative control of the design: ring attention, which merges partial results
 * rank by rank, gives the same attention with other bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "engine/model/graph/graph_transfer.h"
#include "tests/ranks.h"
#include "tests/support.h"

#define SECONDS 60

/* ---- exchange of rows and columns ------------------------------------------------------------ */

enum { RANKS = 3, ROWS = 11, COLS = 8 };
/* First row of each rank; all ranks have different numbers of rows. */
static const int64_t starts[RANKS + 1] = {0, 2, 3, ROWS};

static float value_at(int64_t row, int64_t col)
{
    return (float)(100 * row + col);
}

/* Fills the send buffer: this rank's rows, one block of columns per receiving rank. */
static void fill_blocks(float *blocks, int rank)
{
    for (int r = 0; r < RANKS; r++) {
        invar_index_range range = invar_layout_range_of(COLS, RANKS, r);
        for (int64_t t = starts[rank]; t < starts[rank + 1]; t++)
            for (int64_t c = 0; c < range.count; c++)
                *blocks++ = value_at(t, range.first + c);
    }
}

static invar_status check_columns(const float *columns, int rank)
{
    invar_index_range range = invar_layout_range_of(COLS, RANKS, rank);

    for (int64_t t = 0; t < ROWS; t++)
        for (int64_t c = 0; c < range.count; c++)
            if (columns[t * range.count + c] != value_at(t, range.first + c))
                return INVAR_FAIL(INVAR_E_MISMATCH, 0, "row %d, column %d", (int)t, (int)c);
    return INVAR_OK;
}

/* Exchanges rows for columns and back, and checks both results. */
static invar_status exchange(const invar_layout *layout, invar_op_runner *runner)
{
    int rank = layout->context.rank;
    int64_t rows = starts[rank + 1] - starts[rank];
    invar_index_range range = invar_layout_range_of(COLS, RANKS, rank);
    float own[ROWS * COLS], back[ROWS * COLS], columns[ROWS * COLS];
    invar_tensor blocks = invar_tensor_2d(own, INVAR_DTYPE_F32, rows, COLS);
    invar_transfer_runner transfer_runner = {.layout = layout};
    invar_graph_transfer transfer = {
        .kind = INVAR_GRAPH_TRANSFER_ROWS_TO_COLUMNS,
        .axis = INVAR_GRAPH_TRANSFER_CONTEXT,
        .full = invar_tensor_2d(columns, INVAR_DTYPE_F32, ROWS, range.count),
        .local = blocks,
        .start = starts};
    invar_status status;

    fill_blocks(own, rank);
    status = invar_transfer_runner_run(&transfer_runner, runner, &transfer);
    if (status == INVAR_OK)
        status = check_columns(columns, rank);
    transfer.kind = INVAR_GRAPH_TRANSFER_COLUMNS_TO_ROWS;
    transfer.local = transfer.full;
    transfer.full = invar_tensor_2d(back, INVAR_DTYPE_F32, rows, COLS);
    if (status == INVAR_OK)
        status = invar_transfer_runner_run(&transfer_runner, runner, &transfer);
    if (status == INVAR_OK && memcmp(own, back, (size_t)(rows * COLS) * sizeof *own) != 0)
        status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "other rows came back");
    invar_transfer_runner_release(&transfer_runner, &runner->dev);
    return status;
}

static invar_status run_rank(rank_run *run)
{
    static const invar_layout_sizes sizes = {
        .tensor = 1, .expert_tensor = 1, .context = RANKS, .pipeline = 1, .virtual_stages = 1};
    invar_device dev = {.backend = invar_backend_cpu()};
    invar_layout layout;
    invar_op_runner runner;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    status = invar_layout_divide(&layout, &sizes);
    invar_op_runner_init(&runner, &dev);
    if (status == INVAR_OK)
        status = exchange(&layout, &runner);
    invar_op_runner_release(&runner);
    invar_layout_release(&layout);
    return status;
}

static void test_context__rows_for_columns_and_back(void **state)
{
    rank_run runs[MAX_RANKS];

    (void)state;
    for (uint64_t schedule = 0; schedule < 4; schedule++) {
        run_ranks(runs, RANKS, schedule, 0, run_rank, NULL);
        assert_ok(ranks_status(runs, RANKS));
    }
}

/* ---- ring attention -------------------------------------------------------------------------- */

enum { TOKENS = 64, DIM = 16, RING = 4 };

/* Partial attention of a query over some keys: maximum and sum of the softmax, weighted sum. */
typedef struct partial {
    float max, sum, o[DIM];
} partial;

static void merge(partial *to, const partial *from)
{
    float max = to->max > from->max ? to->max : from->max;
    float a = expf(to->max - max), b = expf(from->max - max);

    to->sum = to->sum * a + from->sum * b;
    for (int d = 0; d < DIM; d++)
        to->o[d] = to->o[d] * a + from->o[d] * b;
    to->max = max;
}

static void attend_to(partial *to, const float *q, const float *k, const float *v)
{
    partial one = {.sum = 1.0f};

    for (int d = 0; d < DIM; d++)
        one.max += q[d] * k[d];
    one.max /= sqrtf((float)DIM);
    memcpy(one.o, v, sizeof one.o);
    merge(to, &one);
}

/* Computes the attention of query `t` with the keys of its own rank first, then of lower ranks. */
static void attend_ring(float *out, int64_t t, const float *q, const float *k, const float *v)
{
    int64_t rows_per_rank = TOKENS / RING, own = t / rows_per_rank;
    partial all = {.max = -INFINITY};

    for (int64_t step = 0; step <= own; step++) {
        int64_t first = (own - step) * rows_per_rank;
        partial part = {.max = -INFINITY};
        for (int64_t s = first; s < first + rows_per_rank && s <= t; s++)
            attend_to(&part, q + t * DIM, k + s * DIM, v + s * DIM);
        merge(&all, &part);
    }
    for (int d = 0; d < DIM; d++)
        out[t * DIM + d] = all.o[d] / all.sum;
}

/* Control: attention merged in ring order is equal up to rounding, but has other bits. */
static void test_context__order_of_a_ring_is_another_sum(void **state)
{
    static const int64_t sample[] = {0, TOKENS};
    static float x[4][TOKENS * DIM], lse[TOKENS], ring[TOKENS * DIM];
    invar_device dev = {.backend = invar_backend_cpu()};
    invar_tensor t[4];
    invar_op_runner runner;
    int differ = 0;

    (void)state;
    for (int i = 0; i < 4; i++)
        t[i] = invar_tensor_3d(x[i], INVAR_DTYPE_F32, TOKENS, 1, DIM);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < TOKENS * DIM; j++)
            x[i][j] = (float)((int)(invar_test_random(5, (uint64_t)(i * TOKENS * DIM + j)) % 2001) -
                              1000) /
                      500.0f;
    invar_op_runner_init(&runner, &dev);
    assert_ok(INVAR_CALL(&runner, ATTENTION_FWD, attention_fwd, .o = t[3],
                         .lse2 = invar_tensor_2d(lse, INVAR_DTYPE_F32, TOKENS, 1), .q = t[0],
                         .k = t[1], .v = t[2], .samples = {sample, 1}));
    invar_op_runner_release(&runner);
    for (int64_t row = 0; row < TOKENS; row++)
        attend_ring(ring, row, x[0], x[1], x[2]);
    for (int i = 0; i < TOKENS * DIM; i++) {
        assert_true(fabsf(ring[i] - x[3][i]) < 1e-4f);
        differ += ring[i] != x[3][i];
    }
    assert_true(differ > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context__rows_for_columns_and_back),
        cmocka_unit_test(test_context__order_of_a_ring_is_another_sum),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
