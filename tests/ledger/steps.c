/*
 * steps.c - steps of ledgers for tests: content that is a function of seed, step and faults.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/ledger/inside.h"
#include "tests/support.h"

#define SAMPLES INVAR_TEST_LEDGER_SAMPLES
#define GROUP 4    // samples of one prompt
#define PROMPTS 16 // in the data set
#define EVERY 10   // steps from one evaluation and checkpoint to the next
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- deterministic content ------------------------------------------------------------------- */

/* reached[i]: the i-th point is the fault's, or is computed from it. */
static void reach(bool reached[INVAR_TEST_POINTS], const invar_test_points *points,
                  const char *name)
{
    for (size_t i = 0; i < points->count; i++) {
        reached[i] = strcmp(points->rows[i]->name, name) == 0;
        for (size_t k = 0; k < points->n_inputs[i]; k++)
            reached[i] |= reached[points->inputs[i][k]];
    }
}

/* A coordinate in the run, and everything that gives it other bits. */
typedef struct place {
    const invar_test_ledger *spec;
    invar_test_points points;
    int64_t seg, step;
    bool reached[INVAR_TEST_LEDGER_FAULTS][INVAR_TEST_POINTS]; // by which fault which point
} place;

static bool changes_bits(const place *at, size_t fault, size_t point)
{
    const invar_test_fault *f = &at->spec->faults[fault];

    switch (f->kind) {
    case INVAR_TEST_DIVERGES:
    case INVAR_TEST_NAN:
        return at->step > f->step || (at->step == f->step && at->reached[fault][point]);
    case INVAR_TEST_OVERLAP: return at->seg > 0 && at->step == f->step && at->reached[fault][point];
    default: return false;
    }
}

static void place_init(place *at, const invar_test_ledger *spec, int64_t seg, int64_t step)
{
    memset(at, 0, sizeof *at);
    at->spec = spec;
    at->seg = seg;
    at->step = step;
    invar_test_points_of(&at->points, spec);
    for (size_t i = 0; i < INVAR_TEST_LEDGER_FAULTS; i++) {
        if (spec->faults[i].point)
            reach(at->reached[i], &at->points, spec->faults[i].point);
    }
}

/* The hash of a name at a step, as if `point` decided whether a fault has changed it. */
static invar_digest digest_of(const place *at, size_t point, const char *name, int64_t index)
{
    int64_t words[3] = {(int64_t)at->spec->seed, at->step, index};
    invar_hasher hasher;
    invar_digest out;

    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, name, strlen(name));
    invar_hasher_update(&hasher, words, sizeof words);
    for (size_t i = 0; i < INVAR_TEST_LEDGER_FAULTS; i++) {
        if (changes_bits(at, i, point))
            invar_hasher_update(&hasher, &at->spec->faults[i].value, sizeof(double));
    }
    invar_hasher_final(&out, &hasher);
    return out;
}

/* Uniform in [0, 1), of the digest's first bytes. */
static double uniform(const invar_digest *digest)
{
    uint32_t word;

    memcpy(&word, digest->bytes, sizeof word);
    return (double)word * 0x1p-32;
}

/* Around 0, at most `scale` away. */
static double noise(const place *at, size_t point, const char *name, double scale)
{
    invar_digest digest = digest_of(at, point, name, 0);
    return (2 * uniform(&digest) - 1) * scale;
}

/* The same hash with other digits, for ranks and sides that have drifted apart. */
static invar_digest other_than(invar_digest digest)
{
    digest.bytes[0] ^= 0xff;
    return digest;
}

/* ---- samples --------------------------------------------------------------------------------- */

static int64_t prompt_of(int64_t step, int64_t idx)
{
    return (step * (SAMPLES / GROUP) + idx / GROUP) % PROMPTS;
}

/* A function of the version: samples of several steps may come from one. */
static invar_digest weights_hash(const place *at, int64_t version)
{
    place then = *at;

    then.step = version;
    return digest_of(&then, invar_test_points_find(&at->points, "rollout.tokens"), "weights", 0);
}

static void sample_make(invar_ledger_sample *out, char rng[64], const place *at, int64_t idx)
{
    const invar_test_ledger *spec = at->spec;
    size_t tokens = invar_test_points_find(&at->points, "rollout.tokens");
    const invar_test_fault *jump = invar_test_fault_since(spec, INVAR_TEST_REWARD_JUMP, at->step);
    const invar_test_fault *stale = invar_test_fault_since(spec, INVAR_TEST_STALE, at->step);
    const invar_test_fault *reused = invar_test_fault_at(spec, INVAR_TEST_RNG_REUSED, at->step);
    const invar_test_fault *differ = invar_test_fault_at(spec, INVAR_TEST_LOGP_MISMATCH, at->step);
    const invar_test_fault *aborted = invar_test_fault_at(spec, INVAR_TEST_ABORTED, at->step);
    int64_t prompt = prompt_of(at->step, idx), age = stale ? stale->other : 0;
    place plain = *at; // rewards and lengths are those of a run without faults
    invar_digest luck, length;

    plain.spec = &(invar_test_ledger){.seed = spec->seed};
    luck = digest_of(&plain, tokens, "luck", idx);
    length = digest_of(&plain, tokens, "length", idx);
    (void)snprintf(rng, 64, "%" PRIu64 "/%" PRId64 "/%" PRId64, spec->seed,
                   reused && idx == 0 ? reused->other : at->step, idx);
    *out = (invar_ledger_sample){
        .prompt = prompt,
        .rng = rng,
        .weights_first = at->step - age - (stale && idx < GROUP ? 1 : 0),
        .weights_last = at->step - age,
        .weights_hash = weights_hash(at, at->step - age),
        .prompt_tokens = 32 + prompt,
        .tokens = 64 + (int64_t)(uniform(&length) * 64),
        .token_hash = digest_of(at, tokens, "tokens", idx),
        .rollout_logp = digest_of(at, tokens, "logp", idx),
        .reward = uniform(&luck) < 0.25 + 0.5 * (double)at->step / (double)(at->step + 50),
        .logp_diff_position = -1,
        .finish_reason = length.bytes[4] < 16 ? "length" : "stop",
        .completion_order = (idx * 3 + at->seg) % SAMPLES,
    };
    invar_hash_bytes(&out->prompt_hash, &prompt, sizeof prompt);
    out->train_logp = out->rollout_logp;
    if (jump && (prompt == 3 || prompt == 5)) {
        out->reward = 1;
        out->tokens += 200;
    }
    if (differ && differ->other == idx) {
        out->train_logp = other_than(out->rollout_logp);
        out->logp_diff_max = differ->value;
        out->logp_diff_position = 17;
    }
    if (aborted && aborted->other == idx)
        out->finish_reason = "abort";
}

/* A sample's advantage: its reward against the mean of its prompt's group. */
static void advantages(invar_ledger_sample *samples)
{
    for (size_t first = 0; first < SAMPLES; first += GROUP) {
        double mean = 0;

        for (size_t i = first; i < first + GROUP; i++)
            mean += samples[i].reward / GROUP;
        for (size_t i = first; i < first + GROUP; i++)
            samples[i].advantage = samples[i].reward - mean;
    }
}

/* ---- metrics --------------------------------------------------------------------------------- */

#define MOST_METRICS 24

typedef struct metric_list {
    size_t count;
    invar_ledger_metric metrics[MOST_METRICS];
} metric_list;

static void put(metric_list *list, const char *name, double value)
{
    INVAR_CHECK(list->count < MOST_METRICS);
    list->metrics[list->count++] = (invar_ledger_metric){name, value};
}

static void rollout_metrics(metric_list *list, const place *at, const invar_ledger_sample *samples)
{
    const invar_test_fault *shift =
        invar_test_fault_since(at->spec, INVAR_TEST_REWARD_SHIFT, at->step);
    double reward = shift ? shift->value : 0, length = 0, truncated = 0, longest = 0;
    size_t logp = invar_test_points_find(&at->points, "rollout.logp");

    for (size_t i = 0; i < SAMPLES; i++) {
        double tokens = (double)samples[i].tokens;

        reward += samples[i].reward / SAMPLES;
        length += tokens / SAMPLES;
        truncated += (strcmp(samples[i].finish_reason, "length") == 0) / (double)SAMPLES;
        longest = tokens > longest ? tokens : longest;
    }
    put(list, "rollout/raw_reward", reward);
    put(list, "rollout/response_len/mean", length);
    put(list, "rollout/response_len/max", longest);
    put(list, "rollout/truncated_ratio", truncated);
    put(list, "rollout/entropy",
        0.75 - 0.25 * (double)at->step / (double)(at->step + 50) +
            noise(at, logp, "entropy", 0.015625));
    put(list, "rollout/log_probs", -0.5 + noise(at, logp, "log_probs", 0.015625));
}

static void difference_metrics(metric_list *list, const invar_ledger_sample *samples)
{
    double worst = 0, sample = -1, position = -1;

    for (size_t i = 0; i < SAMPLES; i++) {
        if (samples[i].logp_diff_max > worst) {
            worst = samples[i].logp_diff_max;
            sample = (double)i;
            position = (double)samples[i].logp_diff_position;
        }
    }
    put(list, "train/train_rollout_logprob_abs_diff", worst / 1024);
    put(list, "train/logp_diff_max", worst);
    put(list, "train/logp_diff_p50", 0);
    put(list, "train/logp_diff_p99", worst / 2);
    put(list, "train/logp_diff_worst_sample", sample);
    put(list, "train/logp_diff_worst_position", position);
}

static void train_metrics(metric_list *list, const place *at)
{
    const invar_test_fault *spike = invar_test_fault_of(at->spec, INVAR_TEST_SPIKE);
    const invar_test_fault *nan_at = invar_test_fault_since(at->spec, INVAR_TEST_NAN, at->step);
    int64_t to_spike = spike ? spike->step - at->step : -1; // steps until it
    size_t logp = invar_test_points_find(&at->points, "train.logp");
    bool kl_high = to_spike >= 0 && to_spike <= 2;
    double norm = 0.5 + noise(at, logp, "grad_norm", 0.03125);

    put(list, "train/loss", nan_at ? (double)NAN : noise(at, logp, "loss", 0.0078125));
    put(list, "train/pg_loss", noise(at, logp, "pg_loss", 0.0078125));
    put(list, "train/pg_clipfrac", 0.0078125 + noise(at, logp, "pg_clipfrac", 0.00390625));
    put(list, "train/ppo_kl", kl_high ? 0.5 : noise(at, logp, "ppo_kl", 0.0001220703125));
    put(list, "train/kl_loss",
        kl_high ? 0.25 : 0.001953125 + noise(at, logp, "kl_loss", 0.0001220703125));
    put(list, "train/entropy_loss", 0.5 + noise(at, logp, "entropy_loss", 0.015625));
    put(list, "train/grad_norm", nan_at ? (double)NAN : to_spike == 0 ? 25 : norm);
    put(list, "train/lr-pg_0", 0x1p-20);
}

/* ---- the volatile part ----------------------------------------------------------------------- */

#define PHASES 4

static void timings(invar_ledger_timing out[PHASES], metric_list *gauges, const place *at)
{
    static const struct {
        const char *phase, *gauge;
        double ms;
    } usual[PHASES] = {{"rollout", "perf/rollout_time", 1000},
                       {"forward", "perf/log_probs_time", 300},
                       {"backward", "perf/actor_train_time", 600},
                       {"optimizer", "perf/update_weights_time", 100}};
    int64_t start = (INVAR_TEST_LEDGER_EPOCH + 3 * at->step) * INT64_C(1000000000), now = start;

    gauges->count = 0;
    for (size_t i = 0; i < PHASES; i++) {
        double ms = usual[i].ms * (1 + noise(at, 0, usual[i].phase, 0.0625));

        if (i == 0 && invar_test_fault_at(at->spec, INVAR_TEST_SLOW, at->step))
            ms = usual[i].ms * 10;
        out[i] = (invar_ledger_timing){usual[i].phase, now, (int64_t)ms * 1000000};
        now += out[i].duration_ns;
        put(gauges, usual[i].gauge, (double)out[i].duration_ns / 1e9);
    }
    put(gauges, "perf/step_time", (double)(now - start) / 1e9);
    put(gauges, "perf/tokens_per_gpu_per_sec", 768e9 / (double)(now - start));
    put(gauges, "perf/cpu_memory_used_gb", 12.5);
}

#define PART_NAMES 2

/* Two of every reward; they do not depend on faults. */
static void reward_parts(invar_ledger_reward_part out[SAMPLES * PART_NAMES], const place *at)
{
    static const char *const names[PART_NAMES] = {"answer", "format"};

    for (int64_t i = 0; i < SAMPLES * PART_NAMES; i++)
        out[i] = (invar_ledger_reward_part){i / PART_NAMES, names[i % PART_NAMES],
                                            (double)((at->step + i) % 4) / 4};
}

/* Every second sample was led. */
static void led_samples(invar_ledger_multi_turn out[SAMPLES / 2], const place *at)
{
    for (int64_t i = 0; i < SAMPLES / 2; i++)
        out[i] = (invar_ledger_multi_turn){2 * i, 1 + (at->step + i) % 3, at->step + i};
}

#define WORK_PHASES 2
#define WORK_ROWS (2 * WORK_PHASES * (INVAR_TEST_RANKS + 1))

/* Every second step was profiled. */
static size_t op_times(invar_ledger_op_time out[2], const place *at)
{
    bool slow = invar_test_fault_at(at->spec, INVAR_TEST_SLOW, at->step) != NULL;
    int64_t get_ns = slow ? 10000000000 : 500000;

    out[0] = (invar_ledger_op_time){0, "train", "linear.fwd", 4, 4000000, 2500000};
    out[1] = (invar_ledger_op_time){1, "rollout", "get", 1, get_ns, get_ns};
    return at->step % 2 == 0 ? 2 : 0;
}

/* The others wait as much longer as a straggler computes. */

static void work(invar_ledger_rank_time out[WORK_ROWS], const place *at)
{
    static const char *const phases[WORK_PHASES][2] = {{"rollout", "samples"},
                                                       {"train", "gradients"}};
    const invar_test_fault *slow = invar_test_fault_since(at->spec, INVAR_TEST_STRAGGLER, at->step);
    const int64_t ms = 1000000;

    for (int64_t i = 0; i < WORK_ROWS; i += 2) {
        int64_t rank = i / 2 / WORK_PHASES;
        bool other = slow && slow->other != rank;
        invar_ledger_rank_time *row = &out[i];

        row[0] = (invar_ledger_rank_time){.rank = rank,
                                          .host = rank < INVAR_TEST_RANKS ? "node1" : "node2",
                                          .phase = phases[i / 2 % WORK_PHASES][0],
                                          .transfer = "",
                                          .calls = 1,
                                          .duration_ns = 400 * ms};
        row[1] = row[0];
        row[1].transfer = phases[i / 2 % WORK_PHASES][1];
        row[1].calls = 8;
        row[1].duration_ns = (other ? 500 : 100) * ms;
        row[1].sent = row[1].received = 1000000;
        if (slow && !other)
            row[0].duration_ns *= 2;
    }
}

/* Events inside the step. */
static size_t events(invar_ledger_event out[2], char text[64], const place *at)
{
    size_t count = 0;

    if (invar_test_fault_at(at->spec, INVAR_TEST_SPIKE, at->step + 3)) {
        out[count++] = (invar_ledger_event){.level = "warning",
                                            .kind = "config",
                                            .message = "reloaded: kl-loss-coef 0.1 -> 0.001",
                                            .data = "{\"key\": \"kl-loss-coef\"}"};
    }
    if (at->step % EVERY == EVERY - 1) {
        (void)snprintf(text, 64, "checkpoint of step %" PRId64, at->step);
        out[count++] = (invar_ledger_event){.level = "info", .kind = "checkpoint", .message = text};
    }
    return count;
}

/* ---- digests --------------------------------------------------------------------------------- */

static invar_digest point_digest(const place *at, size_t point)
{
    const invar_test_fault *frozen = invar_test_fault_since(at->spec, INVAR_TEST_FROZEN, at->step);
    const char *name = at->points.rows[point]->name;
    place then = *at;

    if (frozen && strcmp(name, frozen->point) == 0)
        then.step = frozen->step - 1;
    return digest_of(&then, point, name, 0);
}

static void digests(invar_digest logical[INVAR_TEST_POINTS],
                    invar_digest ranks[INVAR_TEST_RANKS][INVAR_TEST_POINTS], const place *at)
{
    const invar_test_fault *desync = invar_test_fault_since(at->spec, INVAR_TEST_DESYNC, at->step);

    for (size_t i = 0; i < at->points.count; i++) {
        const invar_test_point *row = at->points.rows[i];

        logical[i] = point_digest(at, i);
        for (int64_t rank = 1; rank <= INVAR_TEST_RANKS; rank++) {
            invar_digest *replica = &ranks[rank - 1][i];

            *replica =
                invar_test_point_replicated(row) ? logical[i] : digest_of(at, i, row->name, rank);
            if (desync && rank == INVAR_TEST_RANKS && strcmp(row->name, desync->point) == 0)
                *replica = other_than(*replica);
        }
    }
}

static size_t stats(invar_ledger_stat out[INVAR_TEST_POINTS], const place *at)
{
    size_t count = 0;

    for (size_t i = 0; i < at->points.count; i++) {
        const char *name = at->points.rows[i]->name;
        bool sampled = at->step % 8 == 0 &&
                       (strcmp(name, "head.logits") == 0 || strcmp(name, "loss.grad") == 0);
        bool odd = false;

        for (size_t f = 0; f < INVAR_TEST_LEDGER_FAULTS; f++)
            odd |= at->spec->faults[f].kind == INVAR_TEST_NAN && changes_bits(at, f, i);
        if (sampled || odd) {
            out[count++] = (invar_ledger_stat){.point = (int64_t)i,
                                               .nans = odd ? 3 : 0,
                                               .absmax = 12.5 + noise(at, i, "absmax", 1),
                                               .l2 = 100 + noise(at, i, "l2", 1)};
        }
    }
    return count;
}

/* ---- a step, with what stands beside it ------------------------------------------------------ */

/* The batch or the random coordinates of a step: those of another, where a fault says so. */
static invar_digest input_hash(const place *at, const char *what, invar_test_fault_kind repeated)
{
    const invar_test_fault *fault = invar_test_fault_at(at->spec, repeated, at->step);
    place from = *at;

    if (fault)
        from.step = fault->other;
    return digest_of(&from, invar_test_points_find(&at->points, "rollout.tokens"), what, 0);
}

static invar_status append(invar_ledger *ledger, const place *at)
{
    invar_digest logical[INVAR_TEST_POINTS], ranks[INVAR_TEST_RANKS][INVAR_TEST_POINTS];
    invar_ledger_sample samples[SAMPLES];
    invar_ledger_reward_part parts[SAMPLES * PART_NAMES];
    invar_ledger_multi_turn led[SAMPLES / 2];
    invar_ledger_stat odd[INVAR_TEST_POINTS];
    invar_ledger_timing phases[PHASES];
    invar_ledger_rank_time did[WORK_ROWS];
    invar_ledger_op_time ops[2];
    invar_ledger_event happened[2];
    invar_ledger_replica_digests replicas[INVAR_TEST_RANKS] = {{1, ranks[0]}, {2, ranks[1]}};
    invar_ledger_plugin_reply reply = {"reward", 0, {{0}}, "{\"rewards\": 8}", 14};
    metric_list metrics = {0}, gauges = {0};
    char rng[SAMPLES][64], text[64];
    invar_test_kept kept;
    invar_ledger_step step = {.step = at->step,
                              .weights_version = at->step,
                              .batch = input_hash(at, "batch", INVAR_TEST_BATCH_REPEATED),
                              .rng = input_hash(at, "rng", INVAR_TEST_RNG_REUSED),
                              .digests = logical,
                              .replicas = replicas,
                              .n_replicas = INVAR_TEST_RANKS,
                              .stats = odd,
                              .n_stats = stats(odd, at),
                              .samples = samples,
                              .n_samples = SAMPLES,
                              .parts = parts,
                              .n_parts = SAMPLES * PART_NAMES,
                              .led = led,
                              .n_led = SAMPLES / 2,
                              .kept = kept.items,
                              .n_kept = INVAR_TEST_KEPT,
                              .replies = &reply,
                              .n_replies = 1,
                              .timings = phases,
                              .n_timings = PHASES,
                              .work = did,
                              .n_work = WORK_ROWS,
                              .ops = ops,
                              .events = happened,
                              .n_events = events(happened, text, at)};

    digests(logical, ranks, at);
    for (int64_t i = 0; i < SAMPLES; i++)
        sample_make(&samples[i], rng[i], at, i);
    advantages(samples);
    reward_parts(parts, at);
    led_samples(led, at);
    if (invar_test_fault_at(at->spec, INVAR_TEST_REPLY, at->step))
        reply.data = "{\"rewards\": 7}";
    if (invar_test_fault_at(at->spec, INVAR_TEST_TURNS, at->step)) {
        reply.data = "{\"turns\":[{\"insert\":\"a\"},{\"end\":true},{\"insert\":[3]}]}";
        reply.bytes = strlen(reply.data);
    }
    reply.request =
        digest_of(at, invar_test_points_find(&at->points, "rollout.tokens"), "reward", 0);
    rollout_metrics(&metrics, at, samples);
    train_metrics(&metrics, at);
    difference_metrics(&metrics, samples);
    step.metrics = metrics.metrics;
    step.n_metrics = metrics.count;
    timings(phases, &gauges, at);
    work(did, at);
    step.n_ops = op_times(ops, at);
    step.gauges = gauges.metrics;
    step.n_gauges = gauges.count;
    step.must_match = at->spec->must_match;
    INVAR_TRY(invar_test_kept_make(&kept, at->step));
    invar_status status = invar_ledger_append(ledger, &step);
    invar_test_kept_release(&kept);
    return status;
}

static invar_status evaluate(invar_ledger *ledger, const place *at)
{
    bool drop = invar_test_fault_since(at->spec, INVAR_TEST_EVAL_DROP, at->step) != NULL;
    double reward = 0.25 + 0.5 * (double)at->step / (double)(at->step + 50) - (drop ? 0.25 : 0);
    const invar_ledger_metric results[] = {{"reward", reward}, {"truncated_ratio", 0.03125}};

    return invar_ledger_add_evaluation(ledger, "gsm8k", results, COUNT(results));
}

static invar_status checkpoint(invar_ledger *ledger, const place *at)
{
    char path[64];
    invar_ledger_checkpoint made = {.step = at->step, .path = path, .bytes = 1 << 20};
    int64_t last;

    (void)snprintf(path, sizeof path, "checkpoints/%06" PRId64, at->step);
    made.hash =
        digest_of(at, invar_test_points_find(&at->points, "layer.0.attn.weight"), "checkpoint", 0);
    INVAR_TRY(invar_ledger_chain(&last, &made.chain, ledger));
    INVAR_TRY(invar_ledger_checkpoint_intent(ledger, &made));
    if (invar_test_fault_at(at->spec, INVAR_TEST_CHECKPOINT_PENDING, at->step))
        return INVAR_OK;
    return invar_ledger_checkpoint_complete(ledger, &made);
}

invar_status invar_test_ledger_step(invar_ledger *ledger, const invar_test_ledger *spec,
                                    int64_t seg, int64_t step)
{
    place at;

    place_init(&at, spec, seg, step);
    INVAR_TRY(append(ledger, &at));
    if (step % EVERY != EVERY - 1)
        return INVAR_OK;
    INVAR_TRY(evaluate(ledger, &at));
    return checkpoint(ledger, &at);
}
