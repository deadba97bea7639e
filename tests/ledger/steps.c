/*
 * steps.c - steps of the ledgers that tests write.
 *
 * All content except wall clocks is a function of seed, step and the faults that apply, through
 * digest_of: a fault changes the digest input of the values that depend on its point. Timings are
 * derived in the same way, so a spec always gives the same run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/ledger/ledger_internal.h"
#include "tests/support.h"

#define SAMPLES INVAR_TEST_LEDGER_SAMPLES
#define GROUP 4    // samples of one prompt
#define PROMPTS 16 // prompts of the data set
#define EVERY 10   // steps between two evaluations or checkpoints
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- deterministic content ------------------------------------------------------------------- */

/* Sets reached[i] for the point `name` and all points that are computed from it. */
static void mark_reached(bool reached[INVAR_TEST_POINTS], const invar_test_points *points,
                         const char *name)
{
    for (size_t i = 0; i < points->count; i++) {
        reached[i] = strcmp(points->rows[i]->name, name) == 0;
        for (size_t k = 0; k < points->n_inputs[i]; k++)
            reached[i] |= reached[points->inputs[i][k]];
    }
}

/* A step of a run, and the points that each fault changes. */
typedef struct step_context {
    const invar_test_ledger *spec;
    invar_test_points points;
    int64_t seg, step;
    bool reached[INVAR_TEST_LEDGER_FAULTS][INVAR_TEST_POINTS]; // the fault changes the point
} step_context;

static bool changes_bits(const step_context *ctx, size_t fault, size_t point)
{
    const invar_test_fault *f = &ctx->spec->faults[fault];

    switch (f->kind) {
    case INVAR_TEST_DIVERGES:
    case INVAR_TEST_NAN:
        return ctx->step > f->step || (ctx->step == f->step && ctx->reached[fault][point]);
    case INVAR_TEST_OVERLAP:
        return ctx->seg > 0 && ctx->step == f->step && ctx->reached[fault][point];
    default: return false;
    }
}

static void step_context_init(step_context *ctx, const invar_test_ledger *spec, int64_t seg,
                              int64_t step)
{
    memset(ctx, 0, sizeof *ctx);
    ctx->spec = spec;
    ctx->seg = seg;
    ctx->step = step;
    invar_test_points_of(&ctx->points, spec);
    for (size_t i = 0; i < INVAR_TEST_LEDGER_FAULTS; i++) {
        if (spec->faults[i].point)
            mark_reached(ctx->reached[i], &ctx->points, spec->faults[i].point);
    }
}

/* Returns the digest of a value at a step; it changes with the faults that change `point`. */
static invar_digest digest_of(const step_context *ctx, size_t point, const char *name,
                              int64_t index)
{
    int64_t words[3] = {(int64_t)ctx->spec->seed, ctx->step, index};
    invar_hasher hasher;
    invar_digest out;

    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, name, strlen(name));
    invar_hasher_update(&hasher, words, sizeof words);
    for (size_t i = 0; i < INVAR_TEST_LEDGER_FAULTS; i++) {
        if (changes_bits(ctx, i, point))
            invar_hasher_update(&hasher, &ctx->spec->faults[i].value, sizeof(double));
    }
    invar_hasher_final(&out, &hasher);
    return out;
}

/* Returns a number in [0, 1) from the first bytes of the digest. */
static double uniform(const invar_digest *digest)
{
    uint32_t word;

    memcpy(&word, digest->bytes, sizeof word);
    return (double)word * 0x1p-32;
}

/* Returns deterministic noise in [-scale, scale). */
static double noise(const step_context *ctx, size_t point, const char *name, double scale)
{
    invar_digest digest = digest_of(ctx, point, name, 0);
    return (2 * uniform(&digest) - 1) * scale;
}

/* Returns a different digest, for ranks or sides that have diverged. */
static invar_digest altered(invar_digest digest)
{
    digest.bytes[0] ^= 0xff;
    return digest;
}

/* ---- samples --------------------------------------------------------------------------------- */

static int64_t prompt_of(int64_t step, int64_t idx)
{
    return (step * (SAMPLES / GROUP) + idx / GROUP) % PROMPTS;
}

/* Returns the digest of a weights version; it depends on the version only, not on the step. */
static invar_digest weights_hash(const step_context *ctx, int64_t version)
{
    step_context other_ctx = *ctx;

    other_ctx.step = version;
    return digest_of(&other_ctx, invar_test_points_find(&ctx->points, "rollout.tokens"), "weights",
                     0);
}

static void sample_make(invar_ledger_sample *out, char rng[64], const step_context *ctx,
                        int64_t idx)
{
    const invar_test_ledger *spec = ctx->spec;
    size_t tokens = invar_test_points_find(&ctx->points, "rollout.tokens");
    const invar_test_fault *jump = invar_test_fault_since(spec, INVAR_TEST_REWARD_JUMP, ctx->step);
    const invar_test_fault *stale = invar_test_fault_since(spec, INVAR_TEST_STALE, ctx->step);
    const invar_test_fault *reused = invar_test_fault_at(spec, INVAR_TEST_RNG_REUSED, ctx->step);
    const invar_test_fault *mismatch =
        invar_test_fault_at(spec, INVAR_TEST_LOGP_MISMATCH, ctx->step);
    const invar_test_fault *aborted = invar_test_fault_at(spec, INVAR_TEST_ABORTED, ctx->step);
    int64_t prompt = prompt_of(ctx->step, idx), age = stale ? stale->other : 0;
    step_context plain = *ctx; // rewards and lengths do not depend on faults
    invar_digest luck, length;

    plain.spec = &(invar_test_ledger){.seed = spec->seed};
    luck = digest_of(&plain, tokens, "luck", idx);
    length = digest_of(&plain, tokens, "length", idx);
    (void)snprintf(rng, 64, "%" PRIu64 "/%" PRId64 "/%" PRId64, spec->seed,
                   reused && idx == 0 ? reused->other : ctx->step, idx);
    *out = (invar_ledger_sample){
        .prompt = prompt,
        .rng = rng,
        .weights_first = ctx->step - age - (stale && idx < GROUP ? 1 : 0),
        .weights_last = ctx->step - age,
        .weights_hash = weights_hash(ctx, ctx->step - age),
        .prompt_tokens = 32 + prompt,
        .tokens = 64 + (int64_t)(uniform(&length) * 64),
        .token_hash = digest_of(ctx, tokens, "tokens", idx),
        .rollout_logp = digest_of(ctx, tokens, "logp", idx),
        .reward = uniform(&luck) < 0.25 + 0.5 * (double)ctx->step / (double)(ctx->step + 50),
        .logp_diff_position = -1,
        .finish_reason = length.bytes[4] < 16 ? "length" : "stop",
        .completion_order = (idx * 3 + ctx->seg) % SAMPLES,
    };
    invar_hash_bytes(&out->prompt_hash, &prompt, sizeof prompt);
    out->train_logp = out->rollout_logp;
    if (jump && (prompt == 3 || prompt == 5)) {
        out->reward = 1;
        out->tokens += 200;
    }
    if (mismatch && mismatch->other == idx) {
        out->train_logp = altered(out->rollout_logp);
        out->logp_diff_max = mismatch->value;
        out->logp_diff_position = 17;
    }
    if (aborted && aborted->other == idx)
        out->finish_reason = "abort";
}

/* Sets each advantage to the reward minus the mean reward of the group. */
static void set_advantages(invar_ledger_sample *samples)
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

#define MAX_METRICS 24

typedef struct metric_list {
    size_t count;
    invar_ledger_metric metrics[MAX_METRICS];
} metric_list;

static void add_metric(metric_list *list, const char *name, double value)
{
    INVAR_CHECK(list->count < MAX_METRICS);
    list->metrics[list->count++] = (invar_ledger_metric){name, value};
}

static void rollout_metrics(metric_list *list, const step_context *ctx,
                            const invar_ledger_sample *samples)
{
    const invar_test_fault *shift =
        invar_test_fault_since(ctx->spec, INVAR_TEST_REWARD_SHIFT, ctx->step);
    double reward = shift ? shift->value : 0, length = 0, truncated = 0, longest = 0;
    size_t logp = invar_test_points_find(&ctx->points, "rollout.logp");

    for (size_t i = 0; i < SAMPLES; i++) {
        double tokens = (double)samples[i].tokens;

        reward += samples[i].reward / SAMPLES;
        length += tokens / SAMPLES;
        truncated += (strcmp(samples[i].finish_reason, "length") == 0) / (double)SAMPLES;
        longest = tokens > longest ? tokens : longest;
    }
    add_metric(list, "rollout/raw_reward", reward);
    add_metric(list, "rollout/response_len/mean", length);
    add_metric(list, "rollout/response_len/max", longest);
    add_metric(list, "rollout/truncated_ratio", truncated);
    add_metric(list, "rollout/entropy",
               0.75 - 0.25 * (double)ctx->step / (double)(ctx->step + 50) +
                   noise(ctx, logp, "entropy", 0.015625));
    add_metric(list, "rollout/log_probs", -0.5 + noise(ctx, logp, "log_probs", 0.015625));
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
    add_metric(list, "train/train_rollout_logprob_abs_diff", worst / 1024);
    add_metric(list, "train/logp_diff_max", worst);
    add_metric(list, "train/logp_diff_p50", 0);
    add_metric(list, "train/logp_diff_p99", worst / 2);
    add_metric(list, "train/logp_diff_worst_sample", sample);
    add_metric(list, "train/logp_diff_worst_position", position);
}

static void train_metrics(metric_list *list, const step_context *ctx)
{
    const invar_test_fault *spike = invar_test_fault_of(ctx->spec, INVAR_TEST_SPIKE);
    const invar_test_fault *nan_at = invar_test_fault_since(ctx->spec, INVAR_TEST_NAN, ctx->step);
    // Steps until the spike; negative afterward and without one.
    int64_t to_spike = spike ? spike->step - ctx->step : -1;
    size_t logp = invar_test_points_find(&ctx->points, "train.logp");
    bool kl_high = to_spike >= 0 && to_spike <= 2;
    double norm = 0.5 + noise(ctx, logp, "grad_norm", 0.03125);

    add_metric(list, "train/loss", nan_at ? (double)NAN : noise(ctx, logp, "loss", 0.0078125));
    add_metric(list, "train/pg_loss", noise(ctx, logp, "pg_loss", 0.0078125));
    add_metric(list, "train/pg_clipfrac", 0.0078125 + noise(ctx, logp, "pg_clipfrac", 0.00390625));
    add_metric(list, "train/ppo_kl", kl_high ? 0.5 : noise(ctx, logp, "ppo_kl", 0.0001220703125));
    add_metric(list, "train/kl_loss",
               kl_high ? 0.25 : 0.001953125 + noise(ctx, logp, "kl_loss", 0.0001220703125));
    add_metric(list, "train/entropy_loss", 0.5 + noise(ctx, logp, "entropy_loss", 0.015625));
    add_metric(list, "train/grad_norm", nan_at ? (double)NAN : to_spike == 0 ? 25 : norm);
    add_metric(list, "train/lr-pg_0", 0x1p-20);
}

/* ---- values outside the content -------------------------------------------------------------- */

#define PHASES 4

static void timings(invar_ledger_timing out[PHASES], metric_list *gauges, const step_context *ctx)
{
    static const struct {
        const char *phase, *gauge;
        double ms;
    } usual[PHASES] = {{"rollout", "perf/rollout_time", 1000},
                       {"forward", "perf/log_probs_time", 300},
                       {"backward", "perf/actor_train_time", 600},
                       {"optimizer", "perf/update_weights_time", 100}};
    int64_t start = (INVAR_TEST_LEDGER_EPOCH + 3 * ctx->step) * INT64_C(1000000000), now = start;

    gauges->count = 0;
    for (size_t i = 0; i < PHASES; i++) {
        double ms = usual[i].ms * (1 + noise(ctx, 0, usual[i].phase, 0.0625));

        if (i == 0 && invar_test_fault_at(ctx->spec, INVAR_TEST_SLOW, ctx->step))
            ms = usual[i].ms * 10;
        out[i] = (invar_ledger_timing){usual[i].phase, now, (int64_t)ms * 1000000};
        now += out[i].duration_ns;
        add_metric(gauges, usual[i].gauge, (double)out[i].duration_ns / 1e9);
    }
    add_metric(gauges, "perf/step_time", (double)(now - start) / 1e9);
    add_metric(gauges, "perf/tokens_per_gpu_per_sec", 768e9 / (double)(now - start));
    add_metric(gauges, "perf/cpu_memory_used_gb", 12.5);
}

#define PART_NAMES 2

/* Writes two parts of each reward; they do not depend on faults. */
static void reward_parts(invar_ledger_reward_part out[SAMPLES * PART_NAMES],
                         const step_context *ctx)
{
    static const char *const names[PART_NAMES] = {"answer", "format"};

    for (int64_t i = 0; i < SAMPLES * PART_NAMES; i++)
        out[i] = (invar_ledger_reward_part){i / PART_NAMES, names[i % PART_NAMES],
                                            (double)((ctx->step + i) % 4) / 4};
}

/* Every second sample is multi-turn. */
static void led_samples(invar_ledger_multi_turn out[SAMPLES / 2], const step_context *ctx)
{
    for (int64_t i = 0; i < SAMPLES / 2; i++)
        out[i] = (invar_ledger_multi_turn){2 * i, 1 + (ctx->step + i) % 3, ctx->step + i};
}

#define WORK_PHASES 2
#define WORK_ROWS (2 * WORK_PHASES * (INVAR_TEST_RANKS + 1))

/* Every second step has op times. Returns their number. */
static size_t op_times(invar_ledger_op_time out[2], const step_context *ctx)
{
    bool slow = invar_test_fault_at(ctx->spec, INVAR_TEST_SLOW, ctx->step) != NULL;
    int64_t get_ns = slow ? 10000000000 : 500000;

    out[0] = (invar_ledger_op_time){0, "train", "linear.fwd", 4, 4000000, 2500000};
    out[1] = (invar_ledger_op_time){1, "rollout", "get", 1, get_ns, get_ns};
    return ctx->step % 2 == 0 ? 2 : 0;
}

/* A straggler computes 400 ms longer per phase, and the other ranks wait 400 ms longer. */
static void work(invar_ledger_rank_time out[WORK_ROWS], const step_context *ctx)
{
    static const char *const phases[WORK_PHASES][2] = {{"rollout", "samples"},
                                                       {"train", "gradients"}};
    const invar_test_fault *slow =
        invar_test_fault_since(ctx->spec, INVAR_TEST_STRAGGLER, ctx->step);
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

/* Writes the events of the step and returns their number. */
static size_t events(invar_ledger_event out[2], char text[64], const step_context *ctx)
{
    size_t count = 0;

    if (invar_test_fault_at(ctx->spec, INVAR_TEST_SPIKE, ctx->step + 3)) {
        out[count++] = (invar_ledger_event){.level = "warning",
                                            .kind = "config",
                                            .message = "reloaded: kl-loss-coef 0.1 -> 0.001",
                                            .data = "{\"key\": \"kl-loss-coef\"}"};
    }
    if (ctx->step % EVERY == EVERY - 1) {
        (void)snprintf(text, 64, "checkpoint of step %" PRId64, ctx->step);
        out[count++] = (invar_ledger_event){.level = "info", .kind = "checkpoint", .message = text};
    }
    return count;
}

/* ---- digests --------------------------------------------------------------------------------- */

static invar_digest point_digest(const step_context *ctx, size_t point)
{
    const invar_test_fault *frozen =
        invar_test_fault_since(ctx->spec, INVAR_TEST_FROZEN, ctx->step);
    const char *name = ctx->points.rows[point]->name;
    step_context other_ctx = *ctx;

    if (frozen && strcmp(name, frozen->point) == 0)
        other_ctx.step = frozen->step - 1;
    return digest_of(&other_ctx, point, name, 0);
}

static void digests(invar_digest logical[INVAR_TEST_POINTS],
                    invar_digest ranks[INVAR_TEST_RANKS][INVAR_TEST_POINTS],
                    const step_context *ctx)
{
    const invar_test_fault *desync =
        invar_test_fault_since(ctx->spec, INVAR_TEST_DESYNC, ctx->step);

    for (size_t i = 0; i < ctx->points.count; i++) {
        const invar_test_point *row = ctx->points.rows[i];

        logical[i] = point_digest(ctx, i);
        for (int64_t rank = 1; rank <= INVAR_TEST_RANKS; rank++) {
            invar_digest *replica = &ranks[rank - 1][i];

            *replica =
                invar_test_point_replicated(row) ? logical[i] : digest_of(ctx, i, row->name, rank);
            if (desync && rank == INVAR_TEST_RANKS && strcmp(row->name, desync->point) == 0)
                *replica = altered(*replica);
        }
    }
}

static size_t stats(invar_ledger_stat out[INVAR_TEST_POINTS], const step_context *ctx)
{
    size_t count = 0;

    for (size_t i = 0; i < ctx->points.count; i++) {
        const char *name = ctx->points.rows[i]->name;
        bool sampled = ctx->step % 8 == 0 &&
                       (strcmp(name, "head.logits") == 0 || strcmp(name, "loss.grad") == 0);
        bool with_nan = false;

        for (size_t f = 0; f < INVAR_TEST_LEDGER_FAULTS; f++)
            with_nan |= ctx->spec->faults[f].kind == INVAR_TEST_NAN && changes_bits(ctx, f, i);
        if (sampled || with_nan) {
            out[count++] = (invar_ledger_stat){.point = (int64_t)i,
                                               .nans = with_nan ? 3 : 0,
                                               .absmax = 12.5 + noise(ctx, i, "absmax", 1),
                                               .l2 = 100 + noise(ctx, i, "l2", 1)};
        }
    }
    return count;
}

/* ---- a step, its evaluation and checkpoint --------------------------------------------------- */

/*
 * Returns the digest of the batch or random coordinates of a step; a fault repeats another step's.
 */
static invar_digest input_hash(const step_context *ctx, const char *what,
                               invar_test_fault_kind repeated)
{
    const invar_test_fault *fault = invar_test_fault_at(ctx->spec, repeated, ctx->step);
    step_context source = *ctx;

    if (fault)
        source.step = fault->other;
    return digest_of(&source, invar_test_points_find(&ctx->points, "rollout.tokens"), what, 0);
}

static invar_status append_step(invar_ledger *ledger, const step_context *ctx)
{
    invar_digest logical[INVAR_TEST_POINTS], ranks[INVAR_TEST_RANKS][INVAR_TEST_POINTS];
    invar_ledger_sample samples[SAMPLES];
    invar_ledger_reward_part parts[SAMPLES * PART_NAMES];
    invar_ledger_multi_turn multi_turn[SAMPLES / 2];
    invar_ledger_stat with_nan[INVAR_TEST_POINTS];
    invar_ledger_timing phases[PHASES];
    invar_ledger_rank_time rank_times[WORK_ROWS];
    invar_ledger_op_time ops[2];
    invar_ledger_event step_events[2];
    invar_ledger_replica_digests replicas[INVAR_TEST_RANKS] = {{1, ranks[0]}, {2, ranks[1]}};
    invar_ledger_plugin_reply reply = {"reward", 0, {{0}}, "{\"rewards\": 8}", 14};
    metric_list metrics = {0}, gauges = {0};
    char rng[SAMPLES][64], text[64];
    invar_test_kept kept;
    invar_ledger_step step = {.step = ctx->step,
                              .weights_version = ctx->step,
                              .batch = input_hash(ctx, "batch", INVAR_TEST_BATCH_REPEATED),
                              .rng = input_hash(ctx, "rng", INVAR_TEST_RNG_REUSED),
                              .digests = logical,
                              .replicas = replicas,
                              .n_replicas = INVAR_TEST_RANKS,
                              .stats = with_nan,
                              .n_stats = stats(with_nan, ctx),
                              .samples = samples,
                              .n_samples = SAMPLES,
                              .parts = parts,
                              .n_parts = SAMPLES * PART_NAMES,
                              .multi_turn = multi_turn,
                              .n_multi_turn = SAMPLES / 2,
                              .kept = kept.items,
                              .n_kept = INVAR_TEST_KEPT,
                              .replies = &reply,
                              .n_replies = 1,
                              .timings = phases,
                              .n_timings = PHASES,
                              .work = rank_times,
                              .n_work = WORK_ROWS,
                              .ops = ops,
                              .events = step_events,
                              .n_events = events(step_events, text, ctx)};

    digests(logical, ranks, ctx);
    for (int64_t i = 0; i < SAMPLES; i++)
        sample_make(&samples[i], rng[i], ctx, i);
    set_advantages(samples);
    reward_parts(parts, ctx);
    led_samples(multi_turn, ctx);
    if (invar_test_fault_at(ctx->spec, INVAR_TEST_REPLY, ctx->step))
        reply.data = "{\"rewards\": 7}";
    if (invar_test_fault_at(ctx->spec, INVAR_TEST_TURNS, ctx->step)) {
        reply.data = "{\"turns\":[{\"insert\":\"a\"},{\"end\":true},{\"insert\":[3]}]}";
        reply.bytes = strlen(reply.data);
    }
    reply.request =
        digest_of(ctx, invar_test_points_find(&ctx->points, "rollout.tokens"), "reward", 0);
    rollout_metrics(&metrics, ctx, samples);
    train_metrics(&metrics, ctx);
    difference_metrics(&metrics, samples);
    step.metrics = metrics.metrics;
    step.n_metrics = metrics.count;
    timings(phases, &gauges, ctx);
    work(rank_times, ctx);
    step.n_ops = op_times(ops, ctx);
    step.gauges = gauges.metrics;
    step.n_gauges = gauges.count;
    step.must_match = ctx->spec->must_match;
    INVAR_TRY(invar_test_kept_make(&kept, ctx->step));
    invar_status status = invar_ledger_append(ledger, &step);
    invar_test_kept_release(&kept);
    return status;
}

static invar_status evaluate(invar_ledger *ledger, const step_context *ctx)
{
    bool drop = invar_test_fault_since(ctx->spec, INVAR_TEST_EVAL_DROP, ctx->step) != NULL;
    double reward = 0.25 + 0.5 * (double)ctx->step / (double)(ctx->step + 50) - (drop ? 0.25 : 0);
    const invar_ledger_metric results[] = {{"reward", reward}, {"truncated_ratio", 0.03125}};

    return invar_ledger_add_evaluation(ledger, "gsm8k", results, COUNT(results));
}

static invar_status checkpoint(invar_ledger *ledger, const step_context *ctx)
{
    char path[64];
    invar_ledger_checkpoint made = {.step = ctx->step, .path = path, .bytes = 1 << 20};
    int64_t last;

    (void)snprintf(path, sizeof path, "checkpoints/%06" PRId64, ctx->step);
    made.hash = digest_of(ctx, invar_test_points_find(&ctx->points, "layer.0.attn.weight"),
                          "checkpoint", 0);
    INVAR_TRY(invar_ledger_chain(&last, &made.chain, ledger));
    INVAR_TRY(invar_ledger_checkpoint_intent(ledger, &made));
    if (invar_test_fault_at(ctx->spec, INVAR_TEST_CHECKPOINT_PENDING, ctx->step))
        return INVAR_OK;
    return invar_ledger_checkpoint_complete(ledger, &made);
}

invar_status invar_test_ledger_step(invar_ledger *ledger, const invar_test_ledger *spec,
                                    int64_t seg, int64_t step)
{
    step_context ctx;

    step_context_init(&ctx, spec, seg, step);
    INVAR_TRY(append_step(ledger, &ctx));
    if (step % EVERY != EVERY - 1)
        return INVAR_OK;
    INVAR_TRY(evaluate(ledger, &ctx));
    return checkpoint(ledger, &ctx);
}
