/*
 * fused_parts.h - decomposes a fused call into the plain calls that define its bits.
 *
 * A call is fused if it has a field that op_fields.def marks FUSED: a residual, a rotation, further
 * outputs, an activation, quantized outputs or digests. Its parts are calls without such fields
 * that give the bits of all its outputs. Parts write to side memory only, and read the inputs of
 * the fused call and outputs of earlier parts. They must run before the fused call, whose outputs
 * may overwrite its inputs. To check a fused call:
 *
 *   invar_fused_parts_plan(&parts, op, args, NULL, NULL);         number of parts, memory sizes
 *   invar_fused_parts_plan(&parts, op, args, side, host_side);    the calls
 *   invar_fused_parts_copy_accumulators(dev, &parts);             sums before the call
 *   invar_op_run(dev, parts.call[i].op, &parts.call[i].args);     each part, in order
 *   invar_op_run(dev, op, args);
 *   compare parts.output[i].fused with parts.output[i].reference  each output
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_FUSED_PARTS_H
#define INVAR_KERNELS_FUSED_PARTS_H

#include "kernels-deterministic/op_fields.h"

#define INVAR_FUSED_PARTS_MAX 3
#define INVAR_FUSED_PARTS_MAX_OUTPUTS 5

/* One plain call of the decomposition. */
typedef struct invar_fused_part_call {
    invar_op op;
    invar_op_args args;
} invar_fused_part_call;

/* An output of the fused call and the buffer that its plain counterpart writes. */
typedef struct invar_fused_part_output {
    const invar_field *field; /* field of the fused call; the output accumulates if its role is
                                 INVAR_FIELD_UPDATE */
    invar_tensor fused;       /* memory of the fused output, from invar_field_memory */
    invar_tensor reference;   /* same type and shape, contiguous, in side memory */
    int call;                 /* index of the part that writes it */
    bool host;                /* `reference` is in host memory; field->host says it of `fused` */
} invar_fused_part_output;

typedef struct invar_fused_parts {
    int count; /* number of parts; 0 if the call is not fused, and nothing else is set */
    invar_fused_part_call call[INVAR_FUSED_PARTS_MAX];
    int outputs; /* number of outputs of the fused call */
    invar_fused_part_output output[INVAR_FUSED_PARTS_MAX_OUTPUTS];
    size_t bytes;      /* side memory needed on the device */
    size_t host_bytes; /* side memory needed on the host; mostly 0 */
} invar_fused_parts;

/*
 * Decomposes a call whose arguments the check of the op has accepted. The side memory needs
 * out->bytes and out->host_bytes, alignment INVAR_ALIGN, and must outlive the calls. If both are
 * NULL, the numbers are valid and the addresses in side memory are not.
 */
void invar_fused_parts_plan(invar_fused_parts *out, invar_op op, const void *args, void *side,
                            void *host_side);

/*
 * Copies accumulated outputs of the fused call to the reference buffers, to which the parts add.
 * Call it before the parts.
 */
invar_status invar_fused_parts_copy_accumulators(const invar_device *dev,
                                                 const invar_fused_parts *parts) INVAR_MUST_USE;

#endif
