/*
 * head.c - runs the head: selected rows to log-probs or values, and the backward from their
 * gradients.
 *
 * Rows without a target take no part: last norm and head see only the selected rows, so the units
 * of their gradients are counted over these. Logits are by far the largest tensor. They are
 * computed in head chunks of complete units, and kept for the backward only if there is a single
 * chunk; computing them again gives the same bits.
 *
 * A critic learns the units of its values only before the backward, so its values are shown to
 * hooks then.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/head/head.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "kernels-deterministic/math/bf16.h"

#include "base/invar_banned.h"

static invar_graph_exec_args exec_args_of_head(invar_pass *pass)
{
    invar_graph_exec_args how = invar_pass_exec_args(pass, &pass->head.graph);

    how.samples = pass->head.arrays.samples;
    how.device_samples = pass->head.arrays.device_offsets;
    return how;
}

static invar_tensor find_head_tensor(invar_pass *pass, const invar_tensor *t)
{
    invar_graph_exec_args how = exec_args_of_head(pass);

    return invar_op_graph_find(pass->head.graph.graph, t, &how);
}

/* ---- forward --------------------------------------------------------------------------------- */

/*
 * Sets the input buffers of the head and uploads its arrays; `parts` is the number of unit offsets
 * of head chunks.
 */
static invar_status upload_head(invar_pass *pass, int64_t parts)
{
    const invar_logit_rows *head = &pass->head.rows;
    const invar_graph_exec_args body = invar_pass_exec_args(pass, &pass->layers.graph);
    const void **g = pass->inputs;
    size_t rows = (size_t)head->count;
    size_t divided = invar_vocab_parallel_divided(pass->model->head);
    int64_t chunks =
        pass->head.acts.logits.shape[0] * invar_vocab_parallel_chunks(pass->model->head);
    const invar_upload arrays[] = {
        {&g[INVAR_INPUT_ROWS], rows * sizeof *pass->head.arrays.row},
        {&g[INVAR_INPUT_TARGETS], rows * sizeof *head->targets},
        {&g[INVAR_INPUT_HEAD_UNITS], (size_t)(head->units.count + 1) * sizeof(int64_t)},
        {&g[INVAR_INPUT_PARTS], (size_t)parts * sizeof(int64_t)},
        {&g[INVAR_INPUT_OWN_TARGETS], divided * rows * sizeof *head->targets},
        {&g[INVAR_INPUT_CHUNKS], divided * (size_t)chunks * sizeof *pass->vocab.chunks},
    };

    if (divided)
        INVAR_TRY(invar_vocab_parallel_head(&pass->vocab, pass->model->head, &pass->model->part,
                                            head->targets, head->count,
                                            pass->head.acts.logits.shape[0]));
    g[INVAR_INPUT_OWN_TARGETS] = head->targets ? pass->vocab.own_targets : NULL;
    g[INVAR_INPUT_CHUNKS] = pass->vocab.chunks;
    g[INVAR_INPUT_ROWS] = pass->head.arrays.row;
    g[INVAR_INPUT_TARGETS] = head->targets;
    g[INVAR_INPUT_HEAD_UNITS] = head->units.offsets;
    g[INVAR_INPUT_PARTS] = pass->head.arrays.parts;
    g[INVAR_INPUT_STREAM] =
        invar_op_graph_find(pass->layers.graph.graph, &pass->layers.io.all, &body).data;
    g[INVAR_INPUT_D_STREAM] =
        invar_op_graph_find(pass->layers.graph.graph, &pass->layers.io.d_stream, &body).data;
    INVAR_TRY(invar_upload_buffer_send(&pass->head.staging, &pass->op_runner.dev, arrays,
                                       sizeof arrays / sizeof *arrays));
    invar_head_set_device_offsets(pass);
    return INVAR_OK;
}

static invar_status run_head(invar_pass *pass, bool values)
{
    invar_graph_exec_args how;
    int64_t parts;

    if (pass->state == INVAR_PASS_EMPTY)
        return INVAR_FAIL(INVAR_E_STATE, 0, "the head was asked before the layers ran");
    pass->state = INVAR_PASS_RUN; // an earlier head's activations are overwritten
    INVAR_TRY(invar_head_list_rows(&parts, pass));
    INVAR_TRY(invar_head_build(pass, values, pass->head.entropy_back));
    INVAR_TRY(upload_head(pass, parts));
    how = exec_args_of_head(pass);
    return invar_op_graph_run(pass->head.graph.graph, 0, &how);
}

/* One download for both, because each waits for the device. */
static invar_status download_results(invar_pass *pass, float *logp_out, float *entropy_out)
{
    const float *fetched = pass->head.arrays.fetched;
    size_t count = (size_t)pass->head.rows.count, bytes = count * sizeof *logp_out;

    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(invar_op_runner_download(&pass->op_runner, pass->head.arrays.fetched,
                                       find_head_tensor(pass, &pass->head.acts.logp).data,
                                       entropy_out ? 2 * bytes : bytes));
    memcpy(logp_out, fetched, bytes);
    if (entropy_out)
        memcpy(entropy_out, fetched + count, bytes);
    return INVAR_OK;
}

invar_status invar_pass_head(invar_pass *pass, const invar_logit_rows *head, float *logp_out,
                             float *entropy_out)
{
    pass->head.rows = *head;
    INVAR_TRY(run_head(pass, false));
    INVAR_TRY(download_results(pass, logp_out, entropy_out));
    pass->state = INVAR_PASS_LOGPROBS;
    return INVAR_OK;
}

invar_status invar_pass_logits(invar_tensor *out, invar_pass *pass, const int64_t *row,
                               int64_t count)
{
    pass->head.rows = (invar_logit_rows){.count = count, .row = row};
    INVAR_TRY(run_head(pass, true));
    *out = find_head_tensor(pass, &pass->head.acts.logits);
    pass->state = INVAR_PASS_LOGITS;
    return INVAR_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Zeroes the head's gradient if there is no chunk whose backward would overwrite it. */
static invar_status zero_head_gradient(invar_pass *pass, const invar_grads *grads)
{
    const invar_model *model = pass->model;
    const invar_tensor *dw;

    if (invar_model_is_adapted(model)) // frozen
        return INVAR_OK;
    dw = model->head == model->embedding ? &grads->tied_head
                                         : &grads->tensors[model->head - model->params];
    return invar_device_zero(&pass->op_runner.dev, dw->data,
                             (size_t)(dw->shape[0] * dw->row_stride) * sizeof(float));
}

/* Zeroes the row that stands for all rows that were not selected. */
static invar_status zero_row(invar_pass *pass)
{
    invar_tensor d_x = find_head_tensor(pass, &pass->head.acts.d_x);
    invar_tensor zeros = invar_tensor_rows(&d_x, pass->head.rows.count, 1);

    return invar_device_zero(&pass->op_runner.dev, zeros.data,
                             (size_t)zeros.shape[1] * (size_t)invar_dtype_bits(zeros.dtype) / 8);
}

/* Uploads what a backward reads. With values `dentropy` is NULL, and the units are new. */
static invar_status upload_backward(invar_pass *pass, const float *dlogp, const float *dentropy)
{
    const void **g = pass->inputs;
    const invar_row_offsets *units = &pass->head.rows.units;
    size_t rows = (size_t)pass->head.rows.count;
    const invar_upload arrays[] = {
        {&g[INVAR_INPUT_DLOGP], rows * sizeof *dlogp},
        {&g[INVAR_INPUT_DENTROPY], rows * sizeof *dentropy},
        {&g[INVAR_INPUT_BACK], (size_t)invar_row_partition_count(&pass->division.context) *
                                   sizeof *pass->head.arrays.row_to_selected},
        {&g[INVAR_INPUT_HEAD_UNITS], (size_t)(units->count + 1) * sizeof *units->offsets},
    };

    invar_head_set_row_to_selected(pass);
    g[INVAR_INPUT_DLOGP] = dlogp;
    g[INVAR_INPUT_DENTROPY] = dentropy;
    g[INVAR_INPUT_BACK] = pass->head.arrays.row_to_selected;
    g[INVAR_INPUT_HEAD_UNITS] = units->offsets;
    INVAR_TRY(invar_upload_buffer_send(&pass->head.back_staging, &pass->op_runner.dev, arrays,
                                       sizeof arrays / sizeof *arrays));
    invar_head_set_device_offsets(pass);
    return INVAR_OK;
}

/* Shows a value that no node computes, or that was not shown when it was computed. */
static invar_status show_value(invar_pass *pass, const char *name, const char *op, bool backward,
                               const invar_tensor *rows, const invar_value_name *input)
{
    invar_observed_value value = {.name = {.layer = -1},
                                  .op = op,
                                  .backward = backward,
                                  .op_runner = &pass->op_runner,
                                  .rows = rows,
                                  .samples = &pass->head.rows.units,
                                  .device_samples = &pass->head.arrays.device_offsets[0]};

    if (!pass->hooks.on_value)
        return INVAR_OK;
    (void)snprintf(value.name.text, sizeof value.name.text, "%s", name);
    if (input)
        value.inputs[value.n_inputs++] = *input;
    return pass->hooks.on_value(pass->hooks.payload, &value);
}

/* Shows a gradient that the loss supplied. */
static invar_status show_loss_grad(invar_pass *pass, const invar_graph_point *point,
                                   invar_graph_input which)
{
    invar_tensor rows = invar_tensor_1d((void *)(uintptr_t)pass->inputs[which], INVAR_DTYPE_F32,
                                        pass->head.rows.count);

    return show_value(pass, point->name, "loss", true, &rows, NULL);
}

static invar_status run_head_backward(invar_pass *pass, const invar_grads *grads)
{
    invar_graph_exec_args how = exec_args_of_head(pass);

    how.overwrite = grads->overwrite_next;
    pass->inputs[INVAR_INPUT_GRADS] = grads->memory;
    pass->state = INVAR_PASS_EMPTY;
    INVAR_TRY(invar_op_graph_run(pass->head.graph.graph, 1, &how));
    pass->state = INVAR_PASS_GRADIENT;
    return INVAR_OK;
}

invar_status invar_head_backward(invar_pass *pass, const float *dlogp, const float *dentropy,
                                 const invar_grads *grads)
{
    if (pass->state != INVAR_PASS_LOGPROBS || !pass->options.train)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "a backward needs a training pass whose head has just run");
    if (pass->head.entropy_back !=
        (dentropy != NULL)) { // another loss; the memory plan stays the same
        pass->head.entropy_back = dentropy != NULL;
        INVAR_TRY(invar_head_build(pass, false, pass->head.entropy_back));
    }
    INVAR_TRY(upload_backward(pass, dlogp, dentropy));
    INVAR_TRY(zero_row(pass));
    INVAR_TRY(show_loss_grad(pass, &invar_head_dlogp, INVAR_INPUT_DLOGP));
    if (dentropy)
        INVAR_TRY(show_loss_grad(pass, &invar_head_dentropy, INVAR_INPUT_DENTROPY));
    if (grads->overwrite_next && pass->head.rows.units.count == 0)
        INVAR_TRY(zero_head_gradient(pass, grads));
    return run_head_backward(pass, grads);
}

/* Uploads the gradient of the head's only column, rounded to the storage type. */
static invar_status upload_value_grads(invar_pass *pass, const float *dvalue)
{
    invar_tensor to = find_head_tensor(pass, &pass->head.acts.d_logits);
    size_t rows = (size_t)to.shape[0];
    uint16_t *rounded = pass->head.arrays.values;

    if (to.dtype == INVAR_DTYPE_F32)
        return invar_device_upload(&pass->op_runner.dev, to.data, dvalue, rows * sizeof *dvalue);
    for (size_t i = 0; i < rows; i++)
        rounded[i] = invar_bf16_from_f32(dvalue[i]);
    return invar_device_upload(&pass->op_runner.dev, to.data, rounded, rows * sizeof *rounded);
}

/* Shows the values that the forward could not show without the units. */
static invar_status show_values(invar_pass *pass)
{
    invar_tensor norm = find_head_tensor(pass, &pass->head.acts.norm),
                 logits = find_head_tensor(pass, &pass->head.acts.logits);
    invar_value_name stream = {.layer = pass->head.stream.layer, .text = "mlp"};
    invar_value_name normed = {.layer = -1, .text = "head.norm"};

    INVAR_TRY(
        show_value(pass, "head.norm", invar_op_name(INVAR_OP_RMSNORM_FWD), false, &norm, &stream));
    return show_value(pass, "head.logits", invar_op_name(INVAR_OP_LINEAR_FWD), false, &logits,
                      &normed);
}

invar_status invar_head_backward_values(invar_pass *pass, const float *dvalue,
                                        const invar_row_offsets *units, const invar_grads *grads)
{
    if (pass->state != INVAR_PASS_LOGITS || !pass->options.train || pass->model->head->rows != 1)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "a backward of values needs a training pass of a critic");
    pass->head.rows.units = *units; // unknown in the forward
    pass->head.arrays.samples[0] = *units;
    pass->head.arrays.samples[2] = pass->rows.samples;
    INVAR_TRY(invar_head_build(pass, true, false)); // the memory plan stays the same
    INVAR_TRY(upload_backward(pass, dvalue, NULL));
    INVAR_TRY(zero_row(pass));
    INVAR_TRY(show_values(pass));
    INVAR_TRY(show_loss_grad(pass, &invar_head_dlogp, INVAR_INPUT_DLOGP));
    INVAR_TRY(upload_value_grads(pass, dvalue));
    return run_head_backward(pass, grads);
}
