/*
 * audit.h - a device's results, computed again by the CPU while a run goes on.
 *
 * Of the products and the attention that callers run, some output elements are chosen. Their
 * operands are fetched, the op of the CPU computes the element again, and the bits are compared: by
 * the contract an element depends on its own rows and columns alone, so the problem is small. The
 * choice is a function of the step, of the number of the call and of the rank; nothing here reaches
 * a result.
 *
 *     invar_audit_begin(audit, step, INVAR_AUDIT_TRAIN);  ...  invar_audit_end(audit);
 *
 * A step has up to three parts, each with a plan of its own. The share of a part is divided among
 * the ops that it had last time and spread over their calls; the first time it is the 1st, 2nd,
 * 4th, 8th ... call of each op. Between parts nothing is audited.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_AUDIT_H
#define INVAR_ENGINE_MODEL_GRAPH_AUDIT_H

#include "engine/model/graph/op_runner.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_audit_part {
    INVAR_AUDIT_ROLLOUT, /* a quarter of a step's elements */
    INVAR_AUDIT_SCORE,   /* another quarter */
    INVAR_AUDIT_TRAIN,   /* what is left of them */
    INVAR_AUDIT_PARTS
} invar_audit_part;

/* An element that differs. */
typedef struct invar_audit_finding {
    invar_op op;
    int64_t layer;    /* -1: of none */
    char element[96]; /* "y[12, 345]", "dq[12, 3, 64]": token, head, component */
    int digits;       /* of the patterns, in hex */
    uint32_t device, cpu;
} invar_audit_finding;

typedef struct invar_audit_options {
    int64_t elements; /* of a step */
    int rank, ranks;  /* which of those whose choices differ; 0 of 0: there is one */
    /* Told of every element that differs; what it returns is what the op's caller gets. */
    invar_status (*found)(void *payload, const invar_audit_finding *finding);
    void *payload;
} invar_audit_options;

/* Not with the scratch of `dev`. The device is that of the callers. */
invar_status invar_audit_new(invar_audit **out, const invar_device *dev,
                             const invar_audit_options *options) INVAR_MUST_USE;
void invar_audit_free(invar_audit *audit);

/* NULL is no audit, here and below. */
void invar_audit_begin(invar_audit *audit, int64_t step, invar_audit_part part);
void invar_audit_end(invar_audit *audit);

/* Of the step of the last begin, so far. An element of attention is the whole row of a head. */
void invar_audit_counted(int64_t *checked_out, int64_t *differ_out, const invar_audit *audit);

/* Around every op of a caller. What the op adds to is looked at before. */
invar_status invar_audit_before(invar_audit *audit, invar_op op, const void *args) INVAR_MUST_USE;
invar_status invar_audit_after(invar_audit *audit, invar_op op, const void *args,
                               int64_t layer) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
