/*
 * cases_rows.c - embedding, norm, rotary embedding and activation against PyTorch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/oracle/ops/cases.h"

void invar_oracle_embedding(invar_oracle_run *r)
{
    invar_tensor table = invar_oracle_input(r, "table"), ids = invar_oracle_input(r, "ids");
    invar_tensor dout = invar_oracle_input(r, "dout"), b = invar_oracle_input(r, "b");
    invar_tensor out = invar_oracle_output_like(r, &dout), dtable = invar_oracle_sum(r, &table);
    invar_tensor sum = invar_oracle_output_like(r, &out);
    const int64_t start[] = {0, ids.shape[0] / 3, ids.shape[0]};

    assert_ok(invar_embedding_fwd(&r->dev, &(invar_embedding_fwd_args){out, table, ids}));
    invar_oracle_expect_equal(r, "out", &out);
    assert_ok(
        invar_embedding_bwd(&r->dev, &(invar_embedding_bwd_args){dtable, dout, ids, {start, 2}}));
    invar_oracle_expect(r, "embedding.bwd", "dtable", &dtable, INVAR_ORACLE_IN_F32);
    assert_ok(invar_add(&r->dev, &(invar_add_args){.out = sum, .a = out, .b = b}));
    invar_oracle_expect_equal(r, "sum", &sum);
}

void invar_oracle_rmsnorm(invar_oracle_run *r)
{
    invar_tensor x = invar_oracle_input(r, "x"), weight = invar_oracle_input(r, "weight");
    invar_tensor dy = invar_oracle_input(r, "dy");
    invar_tensor y = invar_oracle_output_like(r, &x), dx = invar_oracle_output_like(r, &x);
    invar_tensor dweight = invar_oracle_sum(r, &weight);
    invar_rmsnorm_fwd_args fwd = {
        .y = y, .x = x, .weight = weight, .eps = (float)invar_oracle_number(r, "eps")};
    invar_rmsnorm_bwd_args bwd = {.dx = dx,
                                  .dweight = dweight,
                                  .dy = dy,
                                  .x = x,
                                  .weight = weight,
                                  .units = invar_oracle_row_offsets(r, "units"),
                                  .eps = fwd.eps};

    assert_ok(invar_rmsnorm_fwd(&r->dev, &fwd));
    invar_oracle_expect(r, "rmsnorm.fwd", "y", &y, INVAR_ORACLE_ROUNDED);
    assert_ok(invar_rmsnorm_bwd(&r->dev, &bwd));
    invar_oracle_expect(r, "rmsnorm.bwd", "dx", &dx, INVAR_ORACLE_ROUNDED);
    invar_oracle_expect(r, "rmsnorm.bwd", "dweight", &dweight, INVAR_ORACLE_IN_F32);
}

/* Returns the rows of `table` at the given positions. */
static invar_tensor rows_at(invar_oracle_run *r, const invar_tensor *table,
                            const invar_tensor *positions)
{
    int64_t cols = table->shape[1];
    invar_tensor rows =
        invar_oracle_output(r, invar_tensor_2d(NULL, INVAR_DTYPE_F32, positions->shape[0], cols));

    for (int64_t i = 0; i < positions->shape[0]; i++) {
        int64_t position = ((const int32_t *)positions->data)[i];
        assert_in_range(position, 0, table->shape[0] - 1);
        memcpy((float *)rows.data + i * cols, (const float *)table->data + position * cols,
               (size_t)cols * sizeof(float));
    }
    return rows;
}

void invar_oracle_rope(invar_oracle_run *r)
{
    // cos and sin are at most 1, and they are rounded to f32 once
    const invar_oracle_limit limit = {{0x1.1p-24, 0x1.1p-24}, {0x1.1p-24, 0x1.1p-24}};
    invar_tensor x = invar_oracle_input(r, "x"), dy = invar_oracle_input(r, "dy");
    invar_tensor y = invar_oracle_output_like(r, &x), dx = invar_oracle_output_like(r, &x);
    invar_tensor positions = invar_oracle_input(r, "positions"), rows;
    int64_t last = ((const int32_t *)positions.data)[positions.shape[0] - 1];
    invar_tensor view = invar_tensor_2d(NULL, INVAR_DTYPE_F32, last + 1, x.shape[2] / 2);
    invar_rope_table_args table = {.cosine = invar_oracle_output(r, view),
                                   .sine = invar_oracle_output(r, view),
                                   .theta = invar_oracle_number(r, "rope_theta"),
                                   .factor = invar_oracle_number(r, "factor"),
                                   .low_freq_factor = invar_oracle_number(r, "low_freq_factor"),
                                   .high_freq_factor = invar_oracle_number(r, "high_freq_factor"),
                                   .original_context =
                                       invar_oracle_number(r, "original_max_position_embeddings")};
    invar_rope_fwd_args rotate = {
        .y = y, .x = x, .positions = positions, .cosine = table.cosine, .sine = table.sine};

    table.scaling = table.factor > 0.0 ? INVAR_ROPE_LLAMA3 : INVAR_ROPE_DEFAULT;
    assert_ok(invar_rope_table(&r->dev, &table));
    rows = rows_at(r, &table.cosine, &positions);
    invar_oracle_expect(r, "rope.table", "cosine", &rows, limit);
    rows = rows_at(r, &table.sine, &positions);
    invar_oracle_expect(r, "rope.table", "sine", &rows, limit);

    assert_ok(invar_rope_bwd(&r->dev, &rotate));
    invar_oracle_reject(r, "y", &y, INVAR_ORACLE_ROUNDED); // Control: the wrong direction.
    assert_ok(invar_rope_fwd(&r->dev, &rotate));
    invar_oracle_expect(r, "rope.fwd", "y", &y, INVAR_ORACLE_ROUNDED);
    rotate.y = dx;
    rotate.x = dy;
    assert_ok(invar_rope_bwd(&r->dev, &rotate));
    invar_oracle_expect(r, "rope.bwd", "dx", &dx, INVAR_ORACLE_ROUNDED);
}

void invar_oracle_swiglu(invar_oracle_run *r)
{
    invar_tensor gate = invar_oracle_input(r, "gate"), up = invar_oracle_input(r, "up");
    invar_tensor dy = invar_oracle_input(r, "dy"), y = invar_oracle_output_like(r, &dy);
    invar_tensor dgate = invar_oracle_output_like(r, &dy), dup = invar_oracle_output_like(r, &dy);

    assert_ok(invar_swiglu_fwd(&r->dev, &(invar_swiglu_fwd_args){.y = y, .gate = gate, .up = up}));
    invar_oracle_expect(r, "swiglu.fwd", "y", &y, INVAR_ORACLE_ROUNDED);
    assert_ok(invar_swiglu_bwd(
        &r->dev,
        &(invar_swiglu_bwd_args){.dgate = dgate, .dup = dup, .dy = dy, .gate = gate, .up = up}));
    invar_oracle_expect(r, "swiglu.bwd", "dgate", &dgate, INVAR_ORACLE_ROUNDED);
    invar_oracle_expect(r, "swiglu.bwd", "dup", &dup, INVAR_ORACLE_ROUNDED);
}
