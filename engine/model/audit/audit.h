/*
 * audit.h - samples output elements of a device's ops and recomputes them on the CPU during a run.
 *
 * The audit picks output elements of the products and attention calls that an op runner executes.
 * It downloads their operands, lets the CPU op compute the element again, and compares the bits. By
 * the numerics contract an element depends on its own rows and columns only, so the problem is
 * small. The picks are a function of step, call number and rank; the audit never changes a result.
 *
 *     invar_audit_begin(audit, step, INVAR_AUDIT_TRAIN);  ...  invar_audit_end(audit);
 *
 * A step has up to three parts, each with its own plan. The element budget of a part is divided
 * among the ops that it used last time and spread over their calls; the first time, the 1st, 2nd,
 * 4th, 8th ... call of each op is audited. Between parts nothing is audited.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_AUDIT_AUDIT_H
#define INVAR_ENGINE_MODEL_AUDIT_AUDIT_H

#include "engine/model/audit/audit_finding.h"
#include "engine/model/graph/op_runner.h"

typedef enum invar_audit_part {
    INVAR_AUDIT_ROLLOUT, /* gets a quarter of the elements of a step */
    INVAR_AUDIT_SCORE,   /* gets a quarter */
    INVAR_AUDIT_TRAIN,   /* gets the remaining ones */
    INVAR_AUDIT_PARTS
} invar_audit_part;

typedef struct invar_audit_options {
    int64_t elements; /* elements to check per step */
    int rank, ranks;  /* number of this rank among `ranks` ranks that make different picks; 0 and
                         0 without them */
    /* Called for every element that differs. Its status is returned to the caller of the op. */
    invar_status (*found)(void *payload, const invar_audit_finding *finding);
    void *payload;
} invar_audit_options;

/* Creates an audit of the ops of runners on `dev`; does not use its scratch. */
invar_status invar_audit_new(invar_audit **out, const invar_device *dev,
                             const invar_audit_options *options) INVAR_MUST_USE;
void invar_audit_free(invar_audit *audit);

/*
 * Starts a part of a step. `audit` may be NULL in this function and all below: nothing is audited.
 */
void invar_audit_begin(invar_audit *audit, int64_t step, invar_audit_part part);
void invar_audit_end(invar_audit *audit);

/*
 * Writes the elements checked and differing since the first part of the current step. An element of
 * attention is the full row of a head.
 */
void invar_audit_counted(int64_t *checked_out, int64_t *differ_out, const invar_audit *audit);

/*
 * An op runner calls these before and after every op. The first reads the element if the op adds to
 * it.
 */
invar_status invar_audit_before(invar_audit *audit, invar_op op, const void *args) INVAR_MUST_USE;
invar_status invar_audit_after(invar_audit *audit, invar_op op, const void *args,
                               int64_t layer) INVAR_MUST_USE;

#endif
