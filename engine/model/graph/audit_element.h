/*
 * audit_element.h - one element of an op's output, computed again.
 *
 * Only the audit includes this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_AUDIT_ELEMENT_H
#define INVAR_ENGINE_MODEL_GRAPH_AUDIT_ELEMENT_H

#include "engine/model/graph/audit.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_AUDIT_PIECES 32

/* Where an element is computed again: all memory is the host's. Zeroed but for the device. */
typedef struct invar_audit_scratch {
    const invar_device *dev; /* that is audited */
    invar_op_runner cpu;
    void *pieces[INVAR_AUDIT_PIECES]; /* operands of the current element */
    int n_pieces;
    bool compared; /* the element was found and compared: see the head of audit_element.c */
    void *room;    /* rows on their way */
} invar_audit_scratch;

/* Which element: the words choose its row, its column and so on. */
typedef struct invar_audit_pick {
    uint32_t word[4];
    float before; /* what was there, of an op that adds */
} invar_audit_pick;

/* Whether the op is audited at all. */
bool invar_audit_knows(invar_op op);

/* Before the op runs: fills in `before` where the op adds. */
invar_status invar_audit_note(invar_audit_pick *choice, invar_audit_scratch *desk, invar_op op,
                              const void *args) INVAR_MUST_USE;

/* Afterwards: *differs, and then `finding` but for the layer. */
invar_status invar_audit_compare(bool *differs, invar_audit_finding *finding,
                                 invar_audit_scratch *desk, invar_op op, const void *args,
                                 const invar_audit_pick *choice) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
