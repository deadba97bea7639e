/*
 * runs.c - writes ledgers with small training runs for tests.
 *
 * A run has fixed facts of build, host and GPU, which the spec can replace. A crash ends segment 0
 * without a finish, and segment 1 resumes. The steps come from steps.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/ledger/ledger_internal.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const invar_ledger_fact usual_facts[] = {
    {"build", "commit", "0123456789abcdef0123456789abcdef01234567"},
    {"build", "tree", "89abcdef0123456789abcdef0123456789abcdef"},
    {"build", "dirty", "clean"},
    {"build", "compiler", "gcc 12.2.0"},
    {"build", "flags", "-O3 -ffp-contract=off"},
    {"build", "binary", "00112233445566778899aabbccddeeff"},
    {"build", "commit_time", "1767225600"},
    {"build", "subject", "linear: fixed tiles"},
    {"build", "author", "A. Author"},
    {"host", "name", "node-1"},
    {"host", "cpu", "Neoverse-V2"},
    {"host", "isa", "sve2"},
    {"host", "os", "Debian 12"},
    {"host", "kernel", "6.1.0"},
    {"host", "libc", "glibc 2.36"},
    {"host", "cores", "72"},
    {"gpu", "name", "GH200"},
    {"gpu", "uuid", "GPU-00000001"},
    {"gpu", "driver", "580.65.06"},
    {"gpu", "cuda", "13.0"},
    {"free", "threads", "8"},
    {"free", "log.every", "10"},
};

#define MAX_FACTS 48

/* Provenance of a segment, with the facts and the object that it points to. */
typedef struct segment_facts {
    invar_ledger_fact facts[MAX_FACTS];
    invar_ledger_object diff;
    invar_ledger_provenance circumstances;
} segment_facts;

static bool same_key(const invar_ledger_fact *a, const invar_ledger_fact *b)
{
    return strcmp(a->scope, b->scope) == 0 && strcmp(a->key, b->key) == 0;
}

static void add_fact(segment_facts *out, const invar_ledger_fact *fact)
{
    size_t i = 0, *count = &out->circumstances.n_facts;

    while (i < *count && !same_key(&out->facts[i], fact))
        i++;
    INVAR_CHECK(i < MAX_FACTS);
    out->facts[i] = *fact;
    *count = i < *count ? *count : i + 1;
}

static void segment_facts_init(segment_facts *out, const invar_test_ledger *spec, int64_t seg)
{
    static const char diff[] = "--- a/linear.c\n+++ b/linear.c\n@@ -1 +1 @@\n-tiles 4\n+tiles 8\n";

    *out = (segment_facts){.diff = {"build", "diff", "text/x-diff", diff, sizeof diff - 1}};
    out->circumstances = (invar_ledger_provenance){.facts = out->facts, .no_auto_facts = true};
    for (size_t i = 0; i < COUNT(usual_facts); i++)
        add_fact(out, &usual_facts[i]);
    if (invar_test_fault_of(spec, INVAR_TEST_DIRTY)) {
        add_fact(out, &(invar_ledger_fact){"build", "dirty", "modified"});
        out->circumstances.objects = &out->diff;
        out->circumstances.n_objects = 1;
    }
    if (seg > 0 && invar_test_fault_of(spec, INVAR_TEST_DRIVER))
        add_fact(out, &(invar_ledger_fact){"gpu", "driver", "580.95.05"});
    for (size_t i = 0; i < spec->n_facts; i++)
        add_fact(out, &spec->facts[i]);
}

invar_status invar_test_ledger_begin(invar_ledger *ledger, const invar_test_ledger *spec)
{
    char seed[24];
    const invar_ledger_pair identity[] = {{"rl.algorithm", "grpo"},
                                          {"optimizer.lr", "9.5367431640625e-07"},
                                          {"model.path", "tiny-2x64"},
                                          {"rollout.n-samples-per-prompt", "4"},
                                          {"seed", seed}};
    invar_ledger_run run = {.name = spec->name ? spec->name : "test",
                            .kind = spec->kind ? spec->kind : "train",
                            .identity = identity,
                            .n_identity = COUNT(identity),
                            .parent = spec->parent,
                            .fork_step = spec->fork_step};
    segment_facts segment;

    INVAR_TRY(invar_test_fault_check(spec));
    (void)snprintf(seed, sizeof seed, "%" PRIu64, spec->seed);
    segment_facts_init(&segment, spec, 0);
    run.circumstances = segment.circumstances;
    INVAR_TRY(invar_ledger_begin(ledger, &run));
    INVAR_TRY(invar_ledger_log_event(
        ledger,
        &(invar_ledger_event){.step = -1, .level = "info", .kind = "run", .message = "began"}));
    return invar_test_points_define(ledger, spec);
}

static invar_status store_summary(void *payload, const invar_ledger_summary *summary)
{
    *(invar_ledger_summary *)payload = *summary;
    return INVAR_OK;
}

invar_status invar_test_ledger_resume(invar_ledger *ledger, const invar_test_ledger *spec,
                                      int64_t step)
{
    invar_ledger_summary newest;
    invar_digest chain = {{0}};
    segment_facts segment;

    INVAR_TRY(invar_ledger_runs(ledger, store_summary, &newest));
    if (step > 0)
        INVAR_TRY(invar_ledger_chain_at(&chain, ledger, newest.run, step - 1));
    segment_facts_init(&segment, spec, 1);
    INVAR_TRY(invar_ledger_resume(ledger, newest.uuid, step - 1, &chain, &segment.circumstances));
    return invar_test_points_define(ledger, spec);
}

static invar_status steps(invar_ledger *ledger, const invar_test_ledger *spec, int64_t seg,
                          int64_t from, int64_t to)
{
    for (int64_t step = from; step < to; step++)
        INVAR_TRY(invar_test_ledger_step(ledger, spec, seg, step));
    return INVAR_OK;
}

static invar_status write_first_segment(invar_ledger *ledger, const void *payload)
{
    const invar_test_ledger *spec = payload;

    INVAR_TRY(invar_test_ledger_begin(ledger, spec));
    INVAR_TRY(steps(ledger, spec, 0, 0, spec->crash ? spec->crash : spec->steps));
    return spec->crash || spec->killed ? INVAR_OK : invar_ledger_finish(ledger, 0, "done");
}

static invar_status write_second_segment(invar_ledger *ledger, const void *payload)
{
    const invar_test_ledger *spec = payload;

    INVAR_TRY(invar_test_ledger_resume(ledger, spec, spec->resume));
    INVAR_TRY(steps(ledger, spec, 1, spec->resume, spec->steps));
    return spec->killed ? INVAR_OK : invar_ledger_finish(ledger, 0, "done");
}

static invar_status with_writer(const char *path, invar_status (*act)(invar_ledger *, const void *),
                                const void *payload)
{
    invar_ledger *ledger;
    invar_status status;

    INVAR_TRY(invar_ledger_open(&ledger, path,
                                &(invar_ledger_options){.create = true, .writer = "a test"}));
    status = act(ledger, payload);
    invar_ledger_close(ledger);
    return status;
}

invar_status invar_test_ledger_add(const char *path, const invar_test_ledger *spec)
{
    INVAR_TRY(with_writer(path, write_first_segment, spec));
    return spec->crash ? with_writer(path, write_second_segment, spec) : INVAR_OK;
}

invar_status invar_test_ledger_write(const char *path, const invar_test_ledger *spec)
{
    static const char *const parts[] = {"", "-wal", "-shm", "-lock"};
    char part[520];

    for (size_t i = 0; i < COUNT(parts); i++) {
        (void)snprintf(part, sizeof part, "%s%s", path, parts[i]);
        (void)remove(part); // the file need not exist
    }
    return invar_test_ledger_add(path, spec);
}
