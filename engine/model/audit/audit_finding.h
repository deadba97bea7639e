/*
 * audit_finding.h - description of an audited element whose bits differ.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_AUDIT_AUDIT_FINDING_H
#define INVAR_ENGINE_MODEL_AUDIT_AUDIT_FINDING_H

#include "kernels-deterministic/ops.h"

/* An element whose bits differ. */
typedef struct invar_audit_finding {
    invar_op op;
    int64_t layer;    /* -1 if the op belongs to no layer */
    char element[96]; /* "y[12, 345]", "dq[12, 3, 64]": token, head, component */
    int digits;       /* hexadecimal digits of `device` and `cpu` */
    uint32_t device, cpu;
} invar_audit_finding;

#endif
