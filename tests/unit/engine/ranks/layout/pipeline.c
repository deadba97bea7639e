/*
 * pipeline.c - the tasks of stages: all of them, in an order in which nobody waits for ever.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/layout/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "tests/ranks.h"

enum { STAGES = 8, CHUNKS = 5, BATCHES = 25, SECONDS = 20 };

/* ---- tasks ----------------------------------------------------------------------------------- */

/* Stages that do their tasks as soon as they can; a send is over when its rows are used. */
typedef struct play {
    int stages, chunks, sends;
    int64_t batches;
    bool back;
    invar_pipeline_schedule tasks[STAGES];
    int64_t next[STAGES];
    bool done[2][BATCHES][STAGES * CHUNKS]; /* forth and back */
} play;

/* Is the task whose rows stage s sent `sends` ago, on the same way, done? */
static bool sent(const play *p, int s, bool back)
{
    int last = p->stages * p->chunks - 1, under_way = 0;

    for (int64_t i = p->next[s] - 1; i >= 0; i--) {
        const invar_pipeline_task *t = &p->tasks[s].tasks[i];
        if (t->is_backward != back || t->chunk == (back ? 0 : last))
            continue;
        if (++under_way == p->sends)
            return p->done[back][t->batch][t->chunk + (back ? -1 : 1)];
    }
    return true;
}

static bool can(const play *p, int s, const invar_pipeline_task *t)
{
    int last = p->stages * p->chunks - 1;

    if (!t->is_backward)
        return (t->chunk == 0 || p->done[0][t->batch][t->chunk - 1]) &&
               (t->chunk == last || sent(p, s, false));
    return p->done[0][t->batch][t->chunk] &&
           (t->chunk == last || p->done[1][t->batch][t->chunk + 1]) &&
           (t->chunk == 0 || sent(p, s, true));
}

static bool advance(play *p, int s)
{
    const invar_pipeline_task *t = &p->tasks[s].tasks[p->next[s]];

    if (p->next[s] == p->tasks[s].count || !can(p, s, t))
        return false;
    assert_int_equal(t->chunk % p->stages, s);
    assert_false(p->done[t->is_backward][t->batch][t->chunk]);
    p->done[t->is_backward][t->batch][t->chunk] = true;
    p->next[s]++;
    return true;
}

/* True: all that is to be done was done. */
static bool play_to_end(play *p)
{
    bool moved = true, all = true;

    memset(p->done, 0, sizeof p->done);
    for (int s = 0; s < p->stages; s++) {
        p->next[s] = 0;
        assert_ok(invar_pipeline_schedule_make(&p->tasks[s], p->stages, p->chunks, s, p->batches,
                                               p->back));
    }
    while (moved) {
        moved = false;
        for (int s = 0; s < p->stages; s++)
            while (advance(p, s))
                moved = true;
    }
    for (int64_t b = 0; b < p->batches; b++)
        for (int c = 0; c < p->stages * p->chunks; c++)
            all = all && p->done[0][b][c] && p->done[1][b][c] == p->back;
    return all;
}

static void release(play *p)
{
    for (int s = 0; s < p->stages; s++)
        invar_pipeline_schedule_release(&p->tasks[s]);
}

/* Micro-batches of a chunk ascend, both ways. */
static void check_order(const invar_pipeline_schedule *tasks)
{
    int64_t before[2][STAGES * CHUNKS];

    memset(before, 0xff, sizeof before);
    for (int64_t i = 0; i < tasks->count; i++) {
        const invar_pipeline_task *t = &tasks->tasks[i];
        assert_true(t->batch > before[t->is_backward][t->chunk]);
        before[t->is_backward][t->chunk] = t->batch;
    }
}

static void test_pipeline__nobody_waits_for_ever(void **state)
{
    static play p;

    (void)state;
    for (p.stages = 1; p.stages <= STAGES; p.stages++)
        for (p.chunks = 1; p.chunks <= CHUNKS; p.chunks++)
            for (p.batches = 0; p.batches <= BATCHES; p.batches++)
                for (int back = 0; back < 2; back++) {
                    p.back = back;
                    p.sends = INVAR_PIPELINE_SENDS;
                    if (p.stages == 1 && p.chunks > 1)
                        continue;
                    if (!play_to_end(&p))
                        fail_msg("%d stages of %d chunks stop, with %d micro-batches", p.stages,
                                 p.chunks, (int)p.batches);
                    for (int s = 0; s < p.stages; s++)
                        check_order(&p.tasks[s]);
                    release(&p);
                }
}

/* The play finds stages that wait for each other: with one send less, some do. */
static void test_pipeline__one_send_is_too_few(void **state)
{
    static play p = {.stages = 2, .chunks = 2, .batches = 4, .back = true, .sends = 1};

    (void)state;
    assert_false(play_to_end(&p));
    release(&p);
}

/* 1F1B: the first stage keeps as many as there are stages, the last one. */
static void test_pipeline__lanes_have_a_bound(void **state)
{
    (void)state;
    for (int stages = 2; stages <= STAGES; stages++)
        for (int s = 0; s < stages; s++)
            for (int64_t batches = 1; batches < 100; batches += 33) {
                int64_t due = stages - s < batches ? stages - s : batches;
                invar_pipeline_schedule tasks;

                assert_ok(invar_pipeline_schedule_make(&tasks, stages, 1, s, batches, true));
                assert_int_equal(invar_pipeline_max_in_flight(&tasks, s), due);
                invar_pipeline_schedule_release(&tasks);
            }
}

/* ---- ways ------------------------------------------------------------------------------------ */

/* Each stage sends its number on and back, several times: sizes change on the way. */
static invar_status hand_on(const invar_layout *layout)
{
    const invar_layout_axis *axis = &layout->pipeline;
    invar_pipeline_channel ways[2];
    invar_status status = INVAR_OK;

    for (int w = 0; w < 2; w++)
        invar_pipeline_channel_init(&ways[w], layout, w == 1);
    for (int i = 0; i < 20 && status == INVAR_OK; i++) {
        int w = i % 2, from = (axis->rank + (w ? 1 : axis->size - 1)) % axis->size;
        size_t bytes = (size_t)(1 + 37 * i % 11 * 1000);
        void *room, *got;

        status = invar_pipeline_send_buffer(&room, &ways[w], bytes);
        if (status != INVAR_OK)
            break;
        memset(room, 16 * i + axis->rank, bytes);
        status = invar_pipeline_send(&ways[w], bytes);
        if (status == INVAR_OK)
            status = invar_pipeline_receive(&got, &ways[w], bytes);
        for (size_t b = 0; b < bytes && status == INVAR_OK; b++)
            if (((unsigned char *)got)[b] != (unsigned char)(16 * i + from))
                status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "stage %d got something else", axis->rank);
    }
    for (int w = 0; w < 2; w++) {
        invar_status one = invar_pipeline_channel_flush(&ways[w]);
        status = status == INVAR_OK ? one : status;
        invar_pipeline_channel_release(&ways[w]);
    }
    return status;
}

static invar_status share_last(const invar_layout *layout)
{
    int number = 7 + layout->pipeline.rank;

    INVAR_TRY(invar_pipeline_broadcast_last(layout, "a number", &number, sizeof number));
    if (number != 7 + layout->pipeline.size - 1)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "not the last stage's number");
    return INVAR_OK;
}

static invar_status rank_part(rank_run *run)
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
        status = hand_on(&layout);
    if (status == INVAR_OK)
        status = share_last(&layout);
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

            run_ranks(runs, 2 * stages, schedule, 0, rank_part, &stages);
            assert_ok(ranks_status(runs, 2 * stages));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline__nobody_waits_for_ever),
        cmocka_unit_test(test_pipeline__one_send_is_too_few),
        cmocka_unit_test(test_pipeline__lanes_have_a_bound),
        cmocka_unit_test(test_pipeline__rows_arrive),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
