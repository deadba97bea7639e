/*
 * fused_parts.h - a fused call as the plain calls that it stands for.
 *
 * A call is fused if it has a field that op_fields.def marks FUSED: a residual, a rotation, further
 * outputs, an activation, codes or digests of what it writes. Its parts are calls without such
 * fields that give the bits of each of its outputs. They write into side memory alone, and read the
 * inputs of the fused call and what parts before them wrote. So they run before the fused call,
 * whose outputs may lie on its inputs:
 *
 *  invar_fused_parts_plan(&parts, op, args, NULL, NULL);      how many, and how much side memory
 *     invar_fused_parts_plan(&parts, op, args, side, host_side);     the calls
 *  invar_fused_parts_copy_accumulators(dev, &parts);           sums, as they are before the call
 *     invar_op_run(dev, parts.call[i].op, &parts.call[i].args);   each of them, in order
 *     invar_op_run(dev, op, args);
 *     parts.output[i].fused and .side hold the same bits     each of them
 *
 * What a part writes has the name of the field in the part's own op, like any other call's results.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_FUSED_PARTS_H
#define INVAR_KERNELS_FUSED_PARTS_H

#include "kernels-deterministic/op_fields.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_FUSED_PARTS_MAX 3
#define INVAR_FUSED_PARTS_MAX_OUTPUTS 5

typedef struct invar_fused_part_call {
    invar_op op;
    invar_op_args args;
} invar_fused_part_call;

/* An output of the fused call, and what its parts make of it. */
typedef struct invar_fused_part_output {
    const invar_field *field; /* of the fused call; a sum if its role is INVAR_FIELD_UPDATE */
    invar_tensor fused;       /* its memory, as invar_field_memory has it */
    invar_tensor reference;   /* the same type and shape, contiguous, in side memory */
    int call;                 /* the part that writes it */
    bool host;                /* the side memory is the host's; of `fused`, field->host says it */
} invar_fused_part_output;

typedef struct invar_fused_parts {
    int count; /* 0: the call is not fused, nothing else is set */
    invar_fused_part_call call[INVAR_FUSED_PARTS_MAX];
    int outputs; /* as many as the fused call has */
    invar_fused_part_output output[INVAR_FUSED_PARTS_MAX_OUTPUTS];
    size_t bytes;      /* of side memory: the device's */
    size_t host_bytes; /* and the host's, mostly 0 */
} invar_fused_parts;

/*
 * The parts of a call with these arguments, which the op's check has accepted. The side memory has
 * at least as many bytes as the result says and the alignment INVAR_ALIGN, and lives as long as the
 * calls are used. With both NULL the numbers are right, and the addresses in side memory are not.
 */
void invar_fused_parts_plan(invar_fused_parts *out, invar_op op, const void *args, void *side,
                            void *host_side);

/* Copies what sums hold now into side memory, where the parts add to them. */
invar_status invar_fused_parts_copy_accumulators(const invar_device *dev,
                                                 const invar_fused_parts *parts) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
