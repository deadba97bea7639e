/*
 * points.c - points of the ledgers that tests write, and lookup of the requested faults.
 *
 * The table lists the points in order of execution with their inputs, so a fault at one point also
 * changes the points computed from it (steps.c).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <assert.h>
#include <string.h>

#include "tests/ledger/ledger_internal.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- points ---------------------------------------------------------------------------------- */

static const invar_test_point point_rows[] = {
    {"rollout.tokens", "rollout", -1, "sample", "data", 0, {NULL}},
    {"rollout.logp", "rollout", -1, "logprob", "logp", 0, {"rollout.tokens"}},
    {"embed.out", "forward", -1, "embed", "act", 0, {"rollout.tokens"}},
    {"layer.0.norm.out", "forward", 0, "rmsnorm", "act", 1, {"embed.out"}},
    {"layer.0.attn.out", "forward", 0, "attention", "act", 1, {"embed.out", "layer.0.norm.out"}},
    {"layer.0.mlp.out", "forward", 0, "swiglu", "act", 0, {"layer.0.attn.out"}},
    {"layer.1.attn.out", "forward", 1, "attention", "act", 1, {"layer.0.mlp.out"}},
    {"layer.1.mlp.out", "forward", 1, "swiglu", "act", 0, {"layer.1.attn.out"}},
    {"head.logits", "forward", -1, "linear", "logits", 0, {"layer.1.mlp.out"}},
    {"train.logp", "forward", -1, "logprob", "logp", 0, {"head.logits", "rollout.tokens"}},
    {"loss.grad", "backward", -1, "loss", "grad", 0, {"train.logp", "rollout.logp"}},
    {"layer.1.mlp.grad", "backward", 1, "linear", "grad", 0, {"loss.grad", "layer.1.mlp.out"}},
    {"layer.0.attn.grad", "backward", 0, "linear", "grad", 0, {"layer.1.mlp.grad"}},
    {"layer.1.mlp.weight", "optimizer", 1, "adamw", "param", 0, {"layer.1.mlp.grad"}},
    {"layer.0.attn.weight", "optimizer", 0, "adamw", "param", 0, {"layer.0.attn.grad"}},
    {"adamw.moments",
     "optimizer",
     -1,
     "adamw",
     "opt",
     0,
     {"layer.1.mlp.grad", "layer.0.attn.grad"}},
};

static_assert(COUNT(point_rows) == INVAR_TEST_POINTS, "as many as ledger_internal.h says");
#define FINER 3 // the point that only a finer manifest has

size_t invar_test_points_find(const invar_test_points *points, const char *name)
{
    size_t i = 0;

    while (i < points->count && strcmp(points->rows[i]->name, name) != 0)
        i++;
    return i;
}

void invar_test_points_of(invar_test_points *out, const invar_test_ledger *spec)
{
    out->count = 0;
    for (size_t row = 0; row < INVAR_TEST_POINTS; row++) {
        size_t i = out->count;

        if (row == FINER && !spec->finer)
            continue;
        out->rows[i] = &point_rows[row];
        out->n_inputs[i] = 0;
        for (size_t k = 0; k < 2 && point_rows[row].inputs[k]; k++) {
            size_t input = invar_test_points_find(out, point_rows[row].inputs[k]);

            if (input < i)
                out->inputs[i][out->n_inputs[i]++] = (int64_t)input;
        }
        out->count++;
    }
}

bool invar_test_point_replicated(const invar_test_point *row)
{
    return strcmp(row->phase, "backward") == 0 ? row->layer >= 0 : strcmp(row->kind, "param") == 0;
}

invar_status invar_test_points_define(invar_ledger *ledger, const invar_test_ledger *spec)
{
    static const int64_t shape[2] = {1024, 64};
    invar_ledger_point defined[INVAR_TEST_POINTS];
    invar_test_points points;

    invar_test_points_of(&points, spec);
    for (size_t i = 0; i < points.count; i++) {
        const invar_test_point *row = points.rows[i];

        defined[i] = (invar_ledger_point){.name = row->name,
                                          .phase = row->phase,
                                          .layer = row->layer,
                                          .op = row->op,
                                          .kind = row->kind,
                                          .level = row->level,
                                          .dtype = strcmp(row->kind, "act") == 0 ? "bf16" : "f32",
                                          .shape = shape,
                                          .dims = 2,
                                          .shards = INVAR_TEST_RANKS,
                                          .replicated = invar_test_point_replicated(row),
                                          .inputs = points.inputs[i],
                                          .n_inputs = points.n_inputs[i]};
    }
    return invar_ledger_define(ledger, defined, points.count);
}

const char *invar_test_ledger_point(int64_t index)
{
    return point_rows[index < FINER ? index : index + 1].name;
}

/* ---- faults ---------------------------------------------------------------------------------- */

static const char *const fault_names[] = {
    [INVAR_TEST_HEALTHY] = "healthy",
    [INVAR_TEST_DIVERGES] = "diverges",
    [INVAR_TEST_OVERLAP] = "overlap",
    [INVAR_TEST_DESYNC] = "desync",
    [INVAR_TEST_NAN] = "nan",
    [INVAR_TEST_FROZEN] = "frozen",
    [INVAR_TEST_BATCH_REPEATED] = "batch_repeated",
    [INVAR_TEST_RNG_REUSED] = "rng_reused",
    [INVAR_TEST_REPLY] = "reply",
    [INVAR_TEST_TURNS] = "turns",
    [INVAR_TEST_SPIKE] = "spike",
    [INVAR_TEST_REWARD_SHIFT] = "reward_shift",
    [INVAR_TEST_EVAL_DROP] = "eval_drop",
    [INVAR_TEST_SLOW] = "slow",
    [INVAR_TEST_STRAGGLER] = "straggler",
    [INVAR_TEST_REWARD_JUMP] = "reward_jump",
    [INVAR_TEST_LOGP_MISMATCH] = "logp_mismatch",
    [INVAR_TEST_STALE] = "stale",
    [INVAR_TEST_ABORTED] = "aborted",
    [INVAR_TEST_CHECKPOINT_PENDING] = "checkpoint_pending",
    [INVAR_TEST_DIRTY] = "dirty",
    [INVAR_TEST_DRIVER] = "driver",
};

invar_status invar_test_fault_parse(invar_test_fault_kind *out, const char *name)
{
    for (size_t i = 0; i < COUNT(fault_names); i++) {
        if (strcmp(fault_names[i], name) == 0) {
            *out = (invar_test_fault_kind)i;
            return INVAR_OK;
        }
    }
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "no fault '%s'; see tests/ledger.h", name);
}

const invar_test_fault *invar_test_fault_of(const invar_test_ledger *spec,
                                            invar_test_fault_kind kind)
{
    for (size_t i = 0; i < INVAR_TEST_LEDGER_FAULTS; i++) {
        if (spec->faults[i].kind == kind)
            return &spec->faults[i];
    }
    return NULL;
}

const invar_test_fault *invar_test_fault_at(const invar_test_ledger *spec,
                                            invar_test_fault_kind kind, int64_t step)
{
    const invar_test_fault *fault = invar_test_fault_of(spec, kind);
    return fault && fault->step == step ? fault : NULL;
}

const invar_test_fault *invar_test_fault_since(const invar_test_ledger *spec,
                                               invar_test_fault_kind kind, int64_t step)
{
    const invar_test_fault *fault = invar_test_fault_of(spec, kind);
    return fault && fault->step <= step ? fault : NULL;
}

invar_status invar_test_fault_check(const invar_test_ledger *spec)
{
    invar_test_points points;

    invar_test_points_of(&points, spec);
    for (size_t i = 0; i < INVAR_TEST_LEDGER_FAULTS; i++) {
        const char *point = spec->faults[i].point;

        if (point && invar_test_points_find(&points, point) == points.count)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "fault %zu: no point '%s'", i, point);
    }
    return INVAR_OK;
}
