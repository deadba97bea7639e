/*
 * peers_model.c - a complete model with our ops and with those of a peer, in turn.
 *
 * The model runs on a backend whose ops are exchanged between steps. A peer whose gradient norm
 * differs by more than 2 % is refused, because it computes something else.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/bench/peers_model.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/bench/step.h"

/* Results with the ops of one side. */
typedef struct side {
    double train, decode, prefill; /* seconds */
    invar_bench_profile train_profile, decode_profile;
} side;

typedef struct model_comparison {
    const invar_bench_model_options *options;
    invar_bench_subject subject;
    const invar_backend *own, *peer;
    invar_bench_train train;
    invar_bench_decode decode;
    double norm_ratio; /* gradient norm of the peer divided by ours */
    side ours, theirs;
} model_comparison;

static void use_ops(model_comparison *m, const invar_backend *backend)
{
    invar_backend *used = invar_profiling_backend_attach(&m->subject.dev, m->subject.profiler);

    memcpy(used->ops, backend->ops, sizeof used->ops);
}

static invar_status find_peer(model_comparison *m, const char *path)
{
    invar_bench_peer_fn make = NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol;

    if (!library)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--peer: %.1000s", dlerror());
    symbol = dlsym(library, "invar_bench_peer");
    memcpy(&make, &symbol, sizeof symbol);
    m->peer = make ? make(m->own) : NULL;
    for (int op = 0; op < INVAR_OP_COUNT && m->peer; op++)
        if (m->own->ops[op].run && !(m->peer->ops[op].run && m->peer->ops[op].workspace))
            m->peer = NULL;
    if (!m->peer || m->peer->abi != m->own->abi)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--peer %.1000s: it has no ops for this device",
                          path);
    return INVAR_OK;
}

/* ---- measurement ----------------------------------------------------------------------------- */

static invar_status peer_step(invar_bench_step *step, void *payload)
{
    model_comparison *m = payload;
    invar_status status;

    use_ops(m, m->peer);
    status = invar_bench_step_run(step, NULL);
    use_ops(m, m->own);
    return status;
}

static invar_status try_peer(model_comparison *m, invar_bench_step *step, double own)
{
    // clears our gradients, which would otherwise stand in for work that the peer omits
    INVAR_TRY(invar_device_zero(&m->subject.dev, step->learner.grads->memory,
                                step->learner.grads->bytes));
    INVAR_TRY(invar_bench_step_gradients(step));
    m->norm_ratio = (double)step->learner.norm / own;
    if (!(m->norm_ratio > 0.98 && m->norm_ratio < 1.02))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                          "--peer: its gradient has a norm of %g, ours of %g: it computes "
                          "something else",
                          (double)step->learner.norm, own);
    return invar_bench_step_profile(&m->theirs.train_profile, step);
}

static invar_status measure_steps(model_comparison *m, invar_bench_step *step)
{
    invar_bench_variant variants[] = {
        {.run = invar_bench_step_run, .median_out = &m->ours.train},
        {.run = peer_step, .payload = m, .median_out = &m->theirs.train}};
    invar_status status;

    INVAR_TRY(invar_bench_step_run(step, NULL));
    INVAR_TRY(invar_bench_step_gradients(step));
    use_ops(m, m->peer);
    status = try_peer(m, step, (double)step->learner.norm);
    use_ops(m, m->own);
    INVAR_TRY(status);
    INVAR_TRY(invar_bench_step_measure(step, variants, 2));
    return invar_bench_step_profile(&m->ours.train_profile, step);
}

static invar_status compare_training(model_comparison *m)
{
    invar_bench_step step;
    invar_status status = invar_bench_step_open(&step, &m->subject, &m->train);

    if (status == INVAR_OK)
        status = measure_steps(m, &step);
    invar_bench_step_close(&step);
    return status;
}

static invar_status decode(side *out, model_comparison *m)
{
    invar_status status = invar_bench_decode_run(&m->decode, &m->subject);

    out->decode = m->decode.seconds;
    out->prefill = m->decode.prefill_seconds;
    out->decode_profile = m->decode.profile;
    m->decode.profile = (invar_bench_profile){0};
    return status;
}

static invar_status compare_decoding(model_comparison *m)
{
    invar_status status;

    use_ops(m, m->peer);
    status = decode(&m->theirs, m);
    use_ops(m, m->own);
    return status == INVAR_OK ? decode(&m->ours, m) : status;
}

/* ---- output ---------------------------------------------------------------------------------- */

static void print_times(const char *what, double tokens, double ours, double theirs)
{
    printf("\n%s\n  %-38s %10.3f ms %12.0f tokens/s\n", what, "our ops", 1e3 * ours, tokens / ours);
    printf("  %-38s %10.3f ms %12.0f tokens/s\n", "with the peer's ops", 1e3 * theirs,
           tokens / theirs);
    printf("  %-38s %+10.1f %%\n", "cost of determinism", 100.0 * (ours / theirs - 1.0));
}

/* Prints the profiles side by side; both have the same calls. */
static void print_profiles(const invar_bench_profile *ours, const invar_bench_profile *theirs)
{
    if (!ours->rows)
        return;
    printf("\n%-16s %-26s %8s %11s %9s %9s\n", "op", "", "calls", "us each", "ms", "peer ms");
    for (const invar_profile_row *r = ours->rows, *end = r + ours->count; r < end; r++) {
        const invar_profile_row *other = theirs->rows, *last = other + theirs->count;
        while (other < last &&
               (strcmp(other->name, r->name) != 0 || strcmp(other->shape, r->shape) != 0))
            other++;
        printf("%-16s %-26s %8" PRId64 " %11.1f %9.3f %9.3f\n", r->name, r->shape,
               r->calls / ours->rounds, 1e6 * r->seconds / (double)r->calls,
               1e3 * r->seconds / (double)ours->rounds,
               other < last ? 1e3 * other->seconds / (double)theirs->rounds : 0.0);
    }
    printf("%-16s %-26s %8s %11s %9.3f %9.3f\n", "all", "", "", "",
           1e3 * ours->seconds / (double)ours->rounds,
           1e3 * theirs->seconds / (double)theirs->rounds);
}

static void json_profile(const char *name, const invar_bench_profile *p)
{
    if (!p->rows)
        return;
    printf(", \"%s\": {\"seconds\": %.9g, \"rounds\": %" PRId64 ", \"rows\": [", name, p->seconds,
           p->rounds);
    for (int64_t i = 0; i < p->count; i++)
        printf("%s\n    {\"op\": \"%s\", \"shape\": \"%s\", \"calls\": %" PRId64
               ", \"seconds\": %.9g}",
               i ? "," : "", p->rows[i].name, p->rows[i].shape, p->rows[i].calls,
               p->rows[i].seconds);
    printf("]}");
}

static void print_training(const model_comparison *m)
{
    const invar_bench_train *t = &m->train;

    if (!m->options->json) {
        print_times("training", (double)(t->samples * t->length), m->ours.train, m->theirs.train);
        print_profiles(&m->ours.train_profile, &m->theirs.train_profile);
        return;
    }
    printf("\"train\": {\"samples\": %" PRId64 ", \"length\": %" PRId64
           ", \"seconds\": %.9g, \"peer_seconds\": %.9g, \"peer_norm_ratio\": %.9g",
           t->samples, t->length, m->ours.train, m->theirs.train, m->norm_ratio);
    json_profile("profile", &m->ours.train_profile);
    json_profile("peer_profile", &m->theirs.train_profile);
    printf("}");
}

static void print_decoding(const model_comparison *m)
{
    const invar_bench_decode *d = &m->decode;

    if (!m->options->json) {
        print_times("decoding", (double)d->batch, m->ours.decode, m->theirs.decode);
        print_times("reading the prompts", (double)(d->batch * d->context), m->ours.prefill,
                    m->theirs.prefill);
        print_profiles(&m->ours.decode_profile, &m->theirs.decode_profile);
        return;
    }
    printf("\"decode\": {\"batch\": %" PRId64 ", \"context\": %" PRId64
           ", \"seconds\": %.9g, \"prefill_seconds\": %.9g, \"peer_seconds\": %.9g",
           d->batch, d->context, m->ours.decode, m->ours.prefill, m->theirs.decode);
    json_profile("profile", &m->ours.decode_profile);
    json_profile("peer_profile", &m->theirs.decode_profile);
    printf("}");
}

/* ---- the run --------------------------------------------------------------------------------- */

static invar_status compare_parts(model_comparison *m)
{
    int only = m->options->only.value;
    bool json = m->options->json;
    invar_status status = INVAR_OK;

    if (json)
        printf("{\n  ");
    if (only != INVAR_BENCH_PART_DECODE) {
        INVAR_TRY(compare_training(m));
        print_training(m);
        fflush(stdout);
    }
    if (json && only < 0)
        printf(",\n  ");
    if (only != INVAR_BENCH_PART_TRAIN) {
        INVAR_TRY(compare_decoding(m));
        print_decoding(m);
    }
    if (json)
        printf("\n}\n");
    return status;
}

invar_status invar_bench_compare_model(const invar_bench_model_options *options, const char *path)
{
    static model_comparison m;
    invar_status status;

    m.options = options;
    if (!path[0])
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--model: expected --peer FILE.so");
    INVAR_TRY(invar_bench_apply_options(&m.train, &m.decode, options));
    INVAR_TRY(invar_backend_find(&m.own, options->device));
    INVAR_TRY(find_peer(&m, path));
    status = invar_bench_open(&m.subject, options, m.own);
    if (status == INVAR_OK)
        status = compare_parts(&m);
    invar_free(m.ours.train_profile.rows);
    invar_free(m.theirs.train_profile.rows);
    invar_free(m.ours.decode_profile.rows);
    invar_free(m.theirs.decode_profile.rows);
    invar_bench_close(&m.subject);
    return status;
}
