/*
 * content.c - tests of the content digest of a run.
 *
 * Each test writes runs that differ from a base run in one field. Changes of times, events,
 * replicas, statistics and points above level 0, of the order of metrics and replies, and
 * interruptions must keep the digest. Every change of a result, down to one bit, must give a digest
 * that no other change gives.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/ledger/raw_ledger.h"

/* ---- base run and changed runs --------------------------------------------------------------- */

enum { STEPS = 3, CHANGED = 1 }; // changes apply to step CHANGED

/* A step with all its records, in arrays that a change can modify before the step is appended. */
typedef struct step_records {
    invar_digest digests[3], replica_digests[3];
    invar_ledger_metric metrics[3], gauges[2], results[2];
    invar_ledger_stat stats[2];
    invar_ledger_sample samples[2];
    invar_ledger_plugin_reply replies[2];
    invar_ledger_timing timings[2];
    invar_ledger_reward_part parts[2];
    invar_ledger_rank_time work[2];
    invar_ledger_event events[2];
    invar_ledger_replica_digests replicas[1];
    invar_ledger_step step;
    const char *dataset;
    size_t n_results;
} step_records;

static invar_digest digest_of(int64_t step, int64_t what)
{
    int64_t key[2] = {step, what};
    invar_digest out;

    invar_hash_bytes(&out, key, sizeof key);
    return out;
}

static void step_records_init(step_records *d, int64_t step)
{
    const invar_ledger_sample sample = {7,
                                        digest_of(step, 20),
                                        "0/1",
                                        step,
                                        step,
                                        digest_of(step, 21),
                                        10,
                                        20,
                                        digest_of(step, 22),
                                        digest_of(step, 23),
                                        digest_of(step, 24),
                                        1,
                                        -0.5,
                                        0.25,
                                        3,
                                        "stop",
                                        0};

    *d = (step_records){
        .metrics = {{"train/loss", 0.1}, {"train/kl", 0.0}, {"rollout/reward", 2}},
        .gauges = {{"perf/a", 1}, {"perf/b", 2}},
        .results = {{"reward", 0.5}, {"length", 100}},
        .stats = {{0, 0, 0, 0, 1.5, 2.5}, {1, 1, 0, 1, 1.5, 2.5}},
        .samples = {sample, sample},
        .replies = {{"judge", 0, digest_of(step, 30), "yes", 3},
                    {"judge", 1, digest_of(step, 31), "no", 2}},
        .timings = {{"rollout", 1, 2}, {"train", 3, 4}},
        .parts = {{0, "format", 0.5}, {1, "answer", 1}},
        .work = {{0, "node1", "train", "", 1, 2, 0, 0},
                 {1, "node2", "train", "weights", 3, 4, 5, 6}},
        .events = {{0, "info", "note", "text", NULL}, {0, "info", "note", "more", NULL}},
        .dataset = "gsm8k",
        .n_results = 2};
    d->samples[1].rng = "0/2";
    for (int i = 0; i < 3; i++)
        d->digests[i] = d->replica_digests[i] = digest_of(step, i);
    d->replicas[0] = (invar_ledger_replica_digests){1, d->replica_digests};
    d->step = (invar_ledger_step){.step = step,
                                  .weights_version = step,
                                  .batch = digest_of(step, 40),
                                  .rng = digest_of(step, 41),
                                  .digests = d->digests,
                                  .replicas = d->replicas,
                                  .n_replicas = 1,
                                  .metrics = d->metrics,
                                  .n_metrics = 3,
                                  .stats = d->stats,
                                  .n_stats = 2,
                                  .samples = d->samples,
                                  .n_samples = 2,
                                  .parts = d->parts,
                                  .n_parts = 2,
                                  .replies = d->replies,
                                  .n_replies = 2,
                                  .timings = d->timings,
                                  .n_timings = 2,
                                  .work = d->work,
                                  .n_work = 2,
                                  .gauges = d->gauges,
                                  .n_gauges = 2,
                                  .events = d->events,
                                  .n_events = 2};
}

static void define(invar_ledger *ledger, size_t count)
{
    invar_ledger_point points[3];

    for (size_t i = 0; i < count; i++)
        points[i] = (invar_ledger_point){.name = (const char *[]){"a", "b", "fine"}[i],
                                         .phase = "forward",
                                         .op = "linear",
                                         .kind = "act",
                                         .level = i == 2,
                                         .dtype = "f32",
                                         .shards = 1};
    assert_ok(invar_ledger_define(ledger, points, count));
}

static void append_step(invar_ledger *ledger, int64_t step, void (*change)(step_records *))
{
    step_records d;

    step_records_init(&d, step);
    if (change && step == CHANGED)
        change(&d);
    assert_ok(invar_ledger_append(ledger, &d.step));
    if (d.n_results > 0)
        assert_ok(invar_ledger_add_evaluation(ledger, d.dataset, d.results, d.n_results));
}

/* Creates a ledger and begins its run. `points` is 3, or 2 to omit the point of level 1. */
static invar_ledger *begin_run(const char *name, size_t points)
{
    invar_ledger *ledger;

    raw_remove(raw_path(name));
    ledger = raw_writer(raw_path(name));
    assert_ok(invar_ledger_begin(
        ledger,
        &(invar_ledger_run){.name = name, .kind = "ci", .circumstances = {.no_auto_facts = true}}));
    define(ledger, points);
    return ledger;
}

static invar_digest finish_content(invar_ledger *ledger)
{
    invar_digest out;

    assert_ok(invar_ledger_content_hash(&out, ledger, 1));
    invar_ledger_close(ledger);
    return out;
}

static invar_digest content_of_change(void (*change)(step_records *))
{
    invar_ledger *ledger = begin_run("run.db", 3);

    for (int64_t step = 0; step < STEPS; step++)
        append_step(ledger, step, change);
    return finish_content(ledger);
}

/* ---- changes that keep the digest ------------------------------------------------------------ */

static void swap_metrics(step_records *d)
{
    invar_ledger_metric first = d->metrics[0];

    d->metrics[0] = d->metrics[2];
    d->metrics[2] = first;
}

static void swap_replies(step_records *d)
{
    invar_ledger_plugin_reply first = d->replies[0];

    d->replies[0] = d->replies[1];
    d->replies[1] = first;
}

static void swap_results(step_records *d)
{
    invar_ledger_metric first = d->results[0];

    d->results[0] = d->results[1];
    d->results[1] = first;
}

#define CHANGE(name, statement)                                                                    \
    static void name(step_records *d)                                                              \
    {                                                                                              \
        statement;                                                                                 \
    }

CHANGE(unchanged, (void)d)
CHANGE(other_arrival, d->samples[0].completion_order = 1)
CHANGE(other_timing, d->timings[0].duration_ns = 99)
CHANGE(no_times, d->step.n_timings = 0)
CHANGE(other_work, d->work[1].sent = 99)
CHANGE(no_work, d->step.n_work = 0)
CHANGE(other_gauge, d->gauges[0].value = 99)
CHANGE(no_gauges, d->step.n_gauges = 0)
CHANGE(other_event, d->events[0].message = "other")
CHANGE(no_events, d->step.n_events = 0)
CHANGE(other_replica, d->replica_digests[0].bytes[0] ^= 1)
CHANGE(no_replicas, d->step.n_replicas = 0)
CHANGE(other_stat, d->stats[0].nans = 9)
CHANGE(no_stats, d->step.n_stats = 0)
CHANGE(other_fine_point, d->digests[2].bytes[0] ^= 1)

static void test_ledger_content__same(void **state)
{
    static void (*const changes[])(step_records *) = {
        unchanged,        other_arrival, other_timing,  no_times,     other_gauge, no_gauges,
        no_events,        other_event,   other_replica, no_replicas,  other_stat,  no_stats,
        other_fine_point, swap_metrics,  swap_replies,  swap_results, other_work,  no_work,
    };
    invar_digest base = content_of_change(NULL), other;

    (void)state;
    for (size_t i = 0; i < COUNT(changes); i++) {
        other = content_of_change(changes[i]);
        raw_assert_digest(&base, &other);
    }
}

/* ---- changes that must change the digest ----------------------------------------------------- */

static void flip_loss(step_records *d)
{
    uint64_t bits;

    memcpy(&bits, &d->metrics[0].value, sizeof bits);
    bits ^= 1;
    memcpy(&d->metrics[0].value, &bits, sizeof bits);
}

static void swap_samples(step_records *d)
{
    invar_ledger_sample first = d->samples[0];

    d->samples[0] = d->samples[1];
    d->samples[1] = first;
}

CHANGE(minus_zero, d->metrics[1].value = -0.0)
CHANGE(other_metric, d->metrics[2].name = "rollout/rewarD")
CHANGE(fewer_metrics, d->step.n_metrics = 2)
CHANGE(other_weights, d->step.weights_version++)
CHANGE(other_batch, d->step.batch.bytes[15] ^= 1)
CHANGE(other_rng, d->step.rng.bytes[0] ^= 1)
CHANGE(other_point, d->digests[1].bytes[7] ^= 0x80)
CHANGE(sample_prompt, d->samples[1].prompt++)
CHANGE(sample_prompt_hash, d->samples[1].prompt_hash.bytes[0] ^= 1)
CHANGE(sample_rng, d->samples[1].rng = "0/3")
CHANGE(sample_first, d->samples[1].weights_first--)
CHANGE(sample_last, d->samples[1].weights_last--)
CHANGE(sample_weights, d->samples[1].weights_hash.bytes[0] ^= 1)
CHANGE(sample_prompt_tokens, d->samples[1].prompt_tokens++)
CHANGE(sample_tokens, d->samples[1].tokens++)
CHANGE(sample_token_hash, d->samples[1].token_hash.bytes[0] ^= 1)
CHANGE(sample_rollout, d->samples[1].rollout_logp.bytes[0] ^= 1)
CHANGE(sample_train, d->samples[1].train_logp.bytes[0] ^= 1)
CHANGE(sample_reward, d->samples[1].reward = 0)
CHANGE(sample_advantage, d->samples[1].advantage = 0.5)
CHANGE(sample_diff, d->samples[1].logp_diff_max = 0.5)
CHANGE(sample_diff_at, d->samples[1].logp_diff_position = -1)
CHANGE(sample_finish, d->samples[1].finish_reason = "length")
CHANGE(fewer_samples, d->step.n_samples = d->step.n_parts = 1)
CHANGE(reply_data, d->replies[1].data = "on")
CHANGE(reply_bytes, d->replies[1].bytes = 1)
CHANGE(reply_request, d->replies[1].request.bytes[0] ^= 1)
CHANGE(reply_call, d->replies[1].call = 2)
CHANGE(reply_plugin, d->replies[1].plugin = "jury")
CHANGE(fewer_replies, d->step.n_replies = 1)
CHANGE(part_value, d->parts[1].value = 2)
CHANGE(part_name, d->parts[1].name = "brevity")
CHANGE(part_sample, d->parts[0].sample = 1; d->parts[0].name = "a")
CHANGE(fewer_parts, d->step.n_parts = 1)
CHANGE(evaluation_value, d->results[1].value = 100.5)
CHANGE(evaluation_name, d->results[1].name = "lengths")
CHANGE(evaluation_dataset, d->dataset = "aime")
CHANGE(fewer_results, d->n_results = 1)
CHANGE(no_evaluation, d->n_results = 0)

static void test_ledger_content__different(void **state)
{
    static void (*const changes[])(step_records *) = {
        flip_loss,         minus_zero,         other_metric,       fewer_metrics,
        other_weights,     other_batch,        other_rng,          other_point,
        sample_prompt,     sample_prompt_hash, sample_rng,         sample_first,
        sample_last,       sample_weights,     sample_tokens,      sample_prompt_tokens,
        sample_token_hash, sample_rollout,     sample_train,       sample_reward,
        sample_advantage,  sample_diff,        sample_diff_at,     sample_finish,
        fewer_samples,     swap_samples,       reply_data,         reply_bytes,
        reply_request,     reply_call,         reply_plugin,       fewer_replies,
        evaluation_value,  evaluation_name,    evaluation_dataset, fewer_results,
        no_evaluation,     part_value,         part_name,          part_sample,
        fewer_parts,
    };
    invar_digest seen[COUNT(changes) + 1];

    (void)state;
    seen[0] = content_of_change(NULL);
    for (size_t i = 0; i < COUNT(changes); i++) {
        seen[i + 1] = content_of_change(changes[i]);
        for (size_t k = 0; k <= i; k++)
            if (invar_digest_equal(&seen[i + 1], &seen[k]))
                fail_msg("changes %zu and %zu have one content", i, k);
    }
}

/* ---- interrupted and resumed runs ------------------------------------------------------------ */

static void resume(invar_ledger *ledger, int64_t after)
{
    static const invar_ledger_fact fact = {"host", "name", "another"};
    const invar_ledger_provenance other_host = {
        .facts = &fact, .n_facts = 1, .no_auto_facts = true};
    invar_digest chain = {{0}};

    if (after >= 0)
        assert_ok(invar_ledger_chain_at(&chain, ledger, 1, after));
    assert_ok(invar_ledger_resume(ledger, NULL, after, &chain, &other_host));
    define(ledger, 3);
}

static void test_ledger_content__interrupted(void **state)
{
    invar_digest base = content_of_change(NULL), other;

    (void)state;
    for (int64_t crash = 0; crash <= STEPS; crash++)
        for (int64_t next = 0; next <= crash; next++) {
            invar_ledger *ledger = begin_run("lives.db", 3);
            // Steps that the first segment executed after the checkpoint do not count, even if they
            // differ.
            for (int64_t step = 0; step < crash; step++)
                append_step(ledger, step, step >= next ? flip_loss : NULL);
            resume(ledger, next - 1);
            for (int64_t step = next; step < STEPS; step++)
                append_step(ledger, step, NULL);
            other = finish_content(ledger);
            raw_assert_digest(&base, &other);
        }
}

/* Events, checkpoints, seals, the finish and points above level 0 keep the content digest. */
static void test_ledger_content__beside(void **state)
{
    const invar_ledger_event event = {-1, "warning", "note", "text", NULL};
    invar_digest base = content_of_change(NULL), other;
    invar_ledger_checkpoint made = {.step = 1, .path = "c", .bytes = 1};
    char seal[INVAR_LEDGER_SEAL_SIZE];
    invar_ledger *ledger = begin_run("beside.db", 2);

    (void)state;
    assert_ok(invar_ledger_log_event(ledger, &event));
    append_step(ledger, 0, NULL);
    append_step(ledger, 1, NULL);
    assert_ok(invar_ledger_chain_at(&made.chain, ledger, 1, 1));
    assert_ok(invar_ledger_checkpoint_intent(ledger, &made));
    assert_ok(invar_ledger_seal(seal, ledger, 1));
    define(ledger, 3); // adds the point of level 1
    append_step(ledger, 2, NULL);
    assert_ok(invar_ledger_finish(ledger, 9, "stopped"));
    other = finish_content(ledger);
    raw_assert_digest(&base, &other);
    raw_assert_clean(raw_path("beside.db"));
}

static void test_ledger_content__of_its_steps(void **state)
{
    invar_digest seen[STEPS + 1];
    invar_ledger *ledger = begin_run("prefix.db", 3);

    (void)state;
    for (int64_t step = 0; step <= STEPS; step++) {
        assert_ok(invar_ledger_content_hash(&seen[step], ledger, 1));
        for (int64_t k = 0; k < step; k++)
            assert_false(invar_digest_equal(&seen[step], &seen[k]));
        append_step(ledger, step, NULL);
    }
    invar_ledger_close(ledger);
}

/*
 * Runs of tests/ledger.h with one seed have one content, even if times, replicas or segments
 * differ. Control: another seed, another evaluation or other bits give other contents.
 */
static void test_ledger_content__fixture(void **state)
{
    static const invar_test_ledger specs[] = {
        {.steps = 12},
        {.steps = 12, .name = "again", .kind = "ci", .killed = true},
        {.steps = 12, .crash = 11, .resume = 7},
        {.steps = 12, .finer = true},
        {.steps = 12, .faults = {{INVAR_TEST_SLOW, .step = 4}, {.kind = INVAR_TEST_DIRTY}}},
        {.steps = 12, .faults = {{INVAR_TEST_DESYNC, .step = 4, .point = "layer.1.mlp.weight"}}},
        {.steps = 12, .seed = 1},
        {.steps = 12, .faults = {{INVAR_TEST_EVAL_DROP, .step = 9}}},
        {.steps = 12, .faults = {{INVAR_TEST_DIVERGES, .step = 11, .point = "adamw.moments"}}},
    };
    enum { SAME = 6 };
    invar_digest contents[COUNT(specs)];

    (void)state;
    for (size_t i = 0; i < COUNT(specs); i++) {
        raw_remove(raw_path("fixture.db"));
        assert_ok(invar_test_ledger_write(raw_path("fixture.db"), &specs[i]));
        contents[i] = raw_content(raw_path("fixture.db"), 1);
        assert_int_equal(invar_digest_equal(&contents[i], &contents[0]), i < SAME);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_content__same),
        cmocka_unit_test(test_ledger_content__different),
        cmocka_unit_test(test_ledger_content__interrupted),
        cmocka_unit_test(test_ledger_content__beside),
        cmocka_unit_test(test_ledger_content__of_its_steps),
        cmocka_unit_test(test_ledger_content__fixture),
    };

    return cmocka_run_group_tests(tests, raw_setup, raw_teardown);
}
