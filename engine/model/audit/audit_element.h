/*
 * audit_element.h - recomputes one element of an op's output on the CPU. Private to audit.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_AUDIT_AUDIT_ELEMENT_H
#define INVAR_ENGINE_MODEL_AUDIT_AUDIT_ELEMENT_H

#include "engine/model/audit/audit_finding.h"
#include "engine/model/graph/op_runner.h"

#define INVAR_AUDIT_MAX_OPERANDS 32

/*
 * Memory in which an element is recomputed; all of it is on the host. Zero-initialize except for
 * the device and the op runner.
 */
typedef struct invar_audit_scratch {
    const invar_device *dev; /* audited device; borrowed */
    invar_op_runner cpu;
    /* operands of the current element; owned until it is done */
    void *operands[INVAR_AUDIT_MAX_OPERANDS];
    int n_operands;
    bool compared;    /* the element was compared; false if offsets or page tables were invalid */
    void *row_buffer; /* buffer for downloaded rows */
} invar_audit_scratch;

/* Random words that select an element: its row, its column and so on. */
typedef struct invar_audit_pick {
    uint32_t word[4];
    float before; /* value before the op, if the op adds to the element */
} invar_audit_pick;

/* Returns true if elements of the op can be audited. */
bool invar_audit_knows(invar_op op);

/* Call before the op runs: sets pick->before, to 0 if the op does not add to the element. */
invar_status invar_audit_read_before(invar_audit_pick *pick, invar_audit_scratch *scratch,
                                     invar_op op, const void *args) INVAR_MUST_USE;

/*
 * Call after the op: *differs tells if the bits differ; then everything in `finding` but the layer
 * is set.
 */
invar_status invar_audit_compare(bool *differs, invar_audit_finding *finding,
                                 invar_audit_scratch *scratch, invar_op op, const void *args,
                                 const invar_audit_pick *pick) INVAR_MUST_USE;

#endif
