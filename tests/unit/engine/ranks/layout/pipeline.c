/*
 * pipeline.c - tests of pipeline schedules and of the channels between stages.
 *
 * A simulation of all stages executes their schedules and must complete every task without
 * deadlock; the control has too few send buffers and must deadlock. Channels are tested with ranks
 * that are threads: each byte is a function of its sender and its message.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/layout/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "tests/ranks.h"

enum { STAGES = 8, CHUNKS = 5, BATCHES = 25, SECONDS = 20 };

/* ---- tasks ----------------------------------------------------------------------------------- */

/*
 * A simulation of stages that execute their tasks as soon as they can. A send buffer is free again
 * when the receiving stage has executed the task that uses its rows.
 */
typedef struct simulation {
    int stages, chunks, n_send_buffers;
    int64_t batches;
    bool back;
    invar_pipeline_schedule tasks[STAGES];
    int64_t next[STAGES];
    bool done[2][BATCHES][STAGES * CHUNKS]; /* executed forward and backward tasks */
} simulation;

/* Reports whether stage s has a free send buffer: the task that uses its oldest send is done. */
static bool has_free_send_buffer(const simulation *p, int s, bool back)
{
    int last = p->stages * p->chunks - 1, in_flight = 0;

    for (int64_t i = p->next[s] - 1; i >= 0; i--) {
        const invar_pipeline_task *t = &p->tasks[s].tasks[i];
        if (t->is_backward != back || t->chunk == (back ? 0 : last))
            continue;
        if (++in_flight == p->n_send_buffers)
            return p->done[back][t->batch][t->chunk + (back ? -1 : 1)];
    }
    return true;
}

static bool can_execute(const simulation *p, int s, const invar_pipeline_task *t)
{
    int last = p->stages * p->chunks - 1;

    if (!t->is_backward)
        return (t->chunk == 0 || p->done[0][t->batch][t->chunk - 1]) &&
               (t->chunk == last || has_free_send_buffer(p, s, false));
    return p->done[0][t->batch][t->chunk] &&
           (t->chunk == last || p->done[1][t->batch][t->chunk + 1]) &&
           (t->chunk == 0 || has_free_send_buffer(p, s, true));
}

static bool execute_next(simulation *p, int s)
{
    const invar_pipeline_task *t = &p->tasks[s].tasks[p->next[s]];

    if (p->next[s] == p->tasks[s].count || !can_execute(p, s, t))
        return false;
    assert_int_equal(t->chunk % p->stages, s);
    assert_false(p->done[t->is_backward][t->batch][t->chunk]);
    p->done[t->is_backward][t->batch][t->chunk] = true;
    p->next[s]++;
    return true;
}

/* Returns whether all tasks were executed, false after a deadlock. */
static bool simulate(simulation *p)
{
    bool moved = true, all_done = true;

    memset(p->done, 0, sizeof p->done);
    for (int s = 0; s < p->stages; s++) {
        p->next[s] = 0;
        assert_ok(invar_pipeline_schedule_make(&p->tasks[s], p->stages, p->chunks, s, p->batches,
                                               p->back));
    }
    while (moved) {
        moved = false;
        for (int s = 0; s < p->stages; s++)
            while (execute_next(p, s))
                moved = true;
    }
    for (int64_t b = 0; b < p->batches; b++)
        for (int c = 0; c < p->stages * p->chunks; c++)
            all_done = all_done && p->done[0][b][c] && p->done[1][b][c] == p->back;
    return all_done;
}

static void release_simulation(simulation *p)
{
    for (int s = 0; s < p->stages; s++)
        invar_pipeline_schedule_release(&p->tasks[s]);
}

/* The micro-batches of a model chunk ascend, forward and backward. */
static void check_order(const invar_pipeline_schedule *tasks)
{
    int64_t last_batch[2][STAGES * CHUNKS];

    memset(last_batch, 0xff, sizeof last_batch);
    for (int64_t i = 0; i < tasks->count; i++) {
        const invar_pipeline_task *t = &tasks->tasks[i];
        assert_true(t->batch > last_batch[t->is_backward][t->chunk]);
        last_batch[t->is_backward][t->chunk] = t->batch;
    }
}

static void test_pipeline__schedules_do_not_deadlock(void **state)
{
    static simulation p;

    (void)state;
    for (p.stages = 1; p.stages <= STAGES; p.stages++)
        for (p.chunks = 1; p.chunks <= CHUNKS; p.chunks++)
            for (p.batches = 0; p.batches <= BATCHES; p.batches++)
                for (int back = 0; back < 2; back++) {
                    p.back = back;
                    p.n_send_buffers = INVAR_PIPELINE_SENDS;
                    if (p.stages == 1 && p.chunks > 1)
                        continue;
                    if (!simulate(&p))
                        fail_msg("%d stages of %d chunks stop, with %d micro-batches", p.stages,
                                 p.chunks, (int)p.batches);
                    for (int s = 0; s < p.stages; s++)
                        check_order(&p.tasks[s]);
                    release_simulation(&p);
                }
}

/* Control: with one send buffer less, the simulation detects stages that wait for each other. */
static void test_pipeline__one_send_buffer_deadlocks(void **state)
{
    static simulation p = {
        .stages = 2, .chunks = 2, .batches = 4, .back = true, .n_send_buffers = 1};

    (void)state;
    assert_false(simulate(&p));
    release_simulation(&p);
}

/* In 1F1B, stage s has at most `stages - s` micro-batches in flight. */
static void test_pipeline__micro_batches_in_flight_have_a_bound(void **state)
{
    (void)state;
    for (int stages = 2; stages <= STAGES; stages++)
        for (int s = 0; s < stages; s++)
            for (int64_t batches = 1; batches < 100; batches += 33) {
                int64_t expected = stages - s < batches ? stages - s : batches;
                invar_pipeline_schedule tasks;

                assert_ok(invar_pipeline_schedule_make(&tasks, stages, 1, s, batches, true));
                assert_int_equal(invar_pipeline_max_in_flight(&tasks, s), expected);
                invar_pipeline_schedule_release(&tasks);
            }
}

/* ---- channels -------------------------------------------------------------------------------- */

/* Each stage sends its rank to the next and the previous stage, in messages of changing size. */
static invar_status exchange_rows(const invar_layout *layout)
{
    const invar_layout_axis *axis = &layout->pipeline;
    invar_pipeline_channel channels[2];
    invar_status status = INVAR_OK;

    for (int w = 0; w < 2; w++)
        invar_pipeline_channel_init(&channels[w], layout, w == 1);
    for (int i = 0; i < 20 && status == INVAR_OK; i++) {
        int w = i % 2, from = (axis->rank + (w ? 1 : axis->size - 1)) % axis->size;
        size_t bytes = (size_t)(1 + 37 * i % 11 * 1000);
        void *buffer, *received;

        status = invar_pipeline_send_buffer(&buffer, &channels[w], bytes);
        if (status != INVAR_OK)
            break;
        memset(buffer, 16 * i + axis->rank, bytes);
        status = invar_pipeline_send(&channels[w], bytes);
        if (status == INVAR_OK)
            status = invar_pipeline_receive(&received, &channels[w], bytes);
        for (size_t b = 0; b < bytes && status == INVAR_OK; b++)
            if (((unsigned char *)received)[b] != (unsigned char)(16 * i + from))
                status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "stage %d got something else", axis->rank);
    }
    for (int w = 0; w < 2; w++) {
        invar_status flushed = invar_pipeline_channel_flush(&channels[w]);
        status = status == INVAR_OK ? flushed : status;
        invar_pipeline_channel_release(&channels[w]);
    }
    return status;
}

/* The last stage's number must reach all stages. */
static invar_status broadcast_last(const invar_layout *layout)
{
    int number = 7 + layout->pipeline.rank;

    INVAR_TRY(invar_pipeline_broadcast_last(layout, "a number", &number, sizeof number));
    if (number != 7 + layout->pipeline.size - 1)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "not the last stage's number");
    return INVAR_OK;
}

static invar_status run_rank(rank_run *run)
{
    const int *stages = run->payload;
    invar_layout layout;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    status = invar_layout_divide(&layout, &(invar_layout_sizes){.tensor = 1,
                                                                .expert = 1,
                                                                .expert_tensor = 1,
                                                                .pipeline = *stages,
                                                                .virtual_stages = 1});
    if (status == INVAR_OK)
        status = exchange_rows(&layout);
    if (status == INVAR_OK)
        status = broadcast_last(&layout);
    if (status != INVAR_OK)
        invar_comm_abort(run->comm, invar_error_last()->message);
    invar_layout_release(&layout);
    return status;
}

static void test_pipeline__rows_arrive(void **state)
{
    (void)state;
    for (int stages = 2; stages <= 4; stages++)
        for (uint64_t schedule = 0; schedule < 3; schedule++) {
            rank_run runs[MAX_RANKS];

            run_ranks(runs, 2 * stages, schedule, 0, run_rank, &stages);
            assert_ok(ranks_status(runs, 2 * stages));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline__schedules_do_not_deadlock),
        cmocka_unit_test(test_pipeline__one_send_buffer_deadlocks),
        cmocka_unit_test(test_pipeline__micro_batches_in_flight_have_a_bound),
        cmocka_unit_test(test_pipeline__rows_arrive),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
