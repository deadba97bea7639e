/*
 * skinny.cu - products with few rows (decoding), limited by loading the weights: plan and launch.
 *
 * Decides which products are supported, how a product is cut, and launches it. skinny_bf16.cu,
 * skinny_int4.cu and skinny_mxfp8.cu have the kernels, skinny_block.cuh their common parts. k is
 * never cut, so an element is one chain and all the parallelism is in the features: a tile has as
 * many of them as give every multiprocessor the same share. Several matrices of weights may share
 * x: each has tiles of its own, one after the other, or, if gated, tiles with features of both.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/gemm/skinny.cuh"

/* ---- plan ------------------------------------------------------------------------------------ */

static int64_t round_up(int64_t n, int64_t to)
{
    return invar_ceil_div(n, to) * to;
}

/* Returns the number of tiles of `features` features, of all outputs. */
static int64_t tiles_of(const invar_gemm_set *set, int features)
{
    int64_t tiles = 0;

    if (set->act)
        return invar_ceil_div(set->product[0].cols, features / 2);
    for (int i = 0; i < set->count; i++)
        tiles += invar_ceil_div(set->product[i].cols, features);
    return tiles;
}

/* Returns the work of the busiest multiprocessor with tiles of `features` features, in features. */
static int64_t busiest_load(const invar_gemm_set *set, int features, int blocks)
{
    enum { TILE_COST = 6 }; // cost of starting and ending a tile, in features
    const invar_gemm *p = &set->product[0];
    int64_t groups = p->groups < p->rows ? p->groups : p->rows; // groups that can have rows
    int64_t tiles = tiles_of(set, features) * groups;

    return invar_ceil_div(tiles, blocks) * (features + TILE_COST);
}

/* Returns the largest of the tiles that leave the busiest multiprocessor the least work. */
static int choose_features(const invar_gemm_set *set, int blocks, const int *sizes, int count)
{
    int best = sizes[0];

    for (int i = 1; i < count; i++)
        if (busiest_load(set, sizes[i], blocks) <= busiest_load(set, best, blocks))
            best = sizes[i];
    return best;
}

/* Returns whether weights are codes, which have scales. */
static bool has_codes(const invar_gemm *p)
{
    return p->b[0].dtype != INVAR_DTYPE_BF16;
}

/*
 * Returns the panels of w in a stage of codes; scale_bytes returns the bytes of a feature's scales.
 */
static int code_panels(const invar_gemm *p)
{
    return p->b[0].dtype == INVAR_DTYPE_INT4 ? INT4_PANELS : MXFP8_PANELS;
}

static int scale_bytes(const invar_gemm *p)
{
    return p->b[0].dtype == INVAR_DTYPE_INT4 ? INT4_SCALES : MXFP8_SCALES;
}

/* Computes the ring of a plan whose tiles are known. */
static void fill_ring(skinny_plan *plan, const invar_gemm *p)
{
    enum { MANY_PANELS = 4, FEW_PANELS = 2, FEW_STAGES = 4 };
    int x_panel = plan->x_rows * ROW_BYTES, w_panel = plan->features * ROW_BYTES;

    if (has_codes(p)) {
        int bytes = CODES_PANELS * x_panel + code_panels(p) * w_panel;
        bytes += plan->features * scale_bytes(p);
        plan->panels = CODES_PANELS;
        plan->stage_bytes = (int)round_up(bytes, HEAD_BYTES);
    } else {
        bool fit = FEW_STAGES * MANY_PANELS * (x_panel + w_panel) <= RING_BYTES;
        plan->panels = fit ? MANY_PANELS : FEW_PANELS;
        plan->stage_bytes = plan->panels * (x_panel + w_panel);
    }
    plan->stages = RING_BYTES / plan->stage_bytes;
    plan->stages = plan->stages < MAX_STAGES ? plan->stages : MAX_STAGES;
}

/* Returns the stages of w that a dense product prefetches. Codes gain nothing from it. */
static int stages_ahead(const skinny_plan *plan, const invar_gemm *p)
{
    int64_t stages = invar_ceil_div(p->k[0], plan->panels * PANEL);
    int64_t wanted = AHEAD_BYTES / (plan->panels * plan->features * ROW_BYTES);

    if (p->start || has_codes(p))
        return 0;
    return (int)(wanted < stages ? wanted : stages);
}

/*
 * Returns the rows of x for which a stage has memory. A group with more of them reads its weights
 * again.
 */
static int rows_of_stage(const invar_gemm *p)
{
    int64_t rows = p->rows;

    if (p->start && 2 * invar_ceil_div(rows, p->groups) < rows)
        rows = 2 * invar_ceil_div(rows, p->groups);
    return (int)round_up(rows < MAX_ROWS ? rows : (int64_t)MAX_ROWS, 8);
}

static skinny_plan make_plan(const invar_device *dev, const invar_gemm_set *set)
{
    static const int bf16_sizes[] = {8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128};
    static const int codes_sizes[] = {32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128};
    static const int gated_sizes[] = {16, 32, 48, 64, 80, 96, 112, 128};
    const invar_gemm *p = &set->product[0];
    bool codes = has_codes(p);
    int blocks = invar_cuda_of(dev)->multiprocessors;
    skinny_plan plan = {};

    plan.x_rows = rows_of_stage(p);
    plan.features = set->act ? choose_features(set, blocks, gated_sizes, 8)
                    : codes  ? choose_features(set, blocks, codes_sizes, 13)
                             : choose_features(set, blocks, bf16_sizes, 12);
    plan.warps = codes && plan.features > 32 ? 8 : 4;
    fill_ring(&plan, p);
    plan.ahead = stages_ahead(&plan, p);
    return plan;
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* Returns boxes of panels. Panels are the third index, so that one copy fetches several. */
static invar_tensor_box panels_of(const invar_gemm_operand *x, int64_t rows, int64_t k,
                                  int box_rows, int box_panels)
{
    invar_tensor_box box = {};

    box.data = x->data;
    box.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    box.rank = 3;
    box.extent[0] = PANEL;
    box.extent[1] = (uint64_t)rows;
    box.extent[2] = (uint64_t)k / PANEL;
    box.stride[1] = (uint64_t)x->stride * 2;
    box.stride[2] = ROW_BYTES;
    box.box[0] = PANEL;
    box.box[1] = (uint32_t)box_rows;
    box.box[2] = (uint32_t)box_panels;
    box.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    return box;
}

static skinny_rows_out rows_out(const invar_gemm *p, void *data, int64_t stride)
{
    uintptr_t pair = p->out_dtype == INVAR_DTYPE_BF16 ? 4 : 8;

    return {data, stride, (uintptr_t)data % pair == 0 && stride % 2 == 0};
}

static invar_status make_output(skinny_output *output, const skinny_job *job, const invar_gemm *p)
{
    const invar_gemm_operand *b = &p->b[0];
    const skinny_plan *plan = &job->plan;
    invar_tensor_box w;

    output->w_rows = p->start ? p->groups * p->group_rows[0] : p->cols;
    output->cols = (int)p->cols;
    output->out = rows_out(p, p->out, p->out_stride);
    output->bias = p->bias;
    output->bias_bf16 = p->bias_dtype == INVAR_DTYPE_BF16;
    output->scale = (const uint8_t *)b->scale;
    output->scale_wide = (uintptr_t)b->scale % (uintptr_t)scale_bytes(p) == 0 &&
                         p->k[0] % (CODES_PANELS * PANEL) == 0;
    w = panels_of(b, output->w_rows, p->k[0], job->gated ? plan->features / 2 : plan->features,
                  job->gated ? 1 : plan->panels);
    w.streamed = true;
    if (has_codes(p)) {
        w.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
        w.rank = 2;
        w.extent[0] = (uint64_t)(p->k[0] * invar_dtype_bits(b->dtype) / 8);
        w.stride[1] = (uint64_t)(b->stride * invar_dtype_bits(b->dtype) / 8);
        w.box[0] = ROW_BYTES;
    }
    return invar_tensor_map(&output->w, &w);
}

static invar_status make_job(skinny_job *job, const invar_gemm_set *set, const skinny_plan *plan)
{
    const invar_gemm *p = &set->product[0];
    invar_tensor_box x = panels_of(&p->a[0], p->rows, p->k[0], plan->x_rows, plan->panels);

    *job = {};
    job->plan = *plan;
    job->outputs = set->count;
    job->rows = (int)p->rows;
    job->k = (int)p->k[0];
    job->out_bf16 = p->out_dtype == INVAR_DTYPE_BF16;
    job->residual = p->residual;
    job->residual_stride = p->residual_stride;
    job->gated = set->act != NULL;
    job->act = rows_out(p, set->act, set->act_stride);
    job->start = p->start;
    job->groups = (int)p->groups;
    job->group_rows = (int)p->group_rows[0];
    job->tiles = (int)tiles_of(set, plan->features);
    for (int i = 0, tiles = 0; i < set->count; i++) {
        job->output[i].first_tile = tiles;
        INVAR_TRY(make_output(&job->output[i], job, &set->product[i]));
        tiles += (int)invar_ceil_div(set->product[i].cols, plan->features);
    }
    return invar_tensor_map(&job->x, &x);
}

static invar_status launch_job(const invar_device *dev, const invar_gemm *p, const skinny_job *job)
{
    const skinny_plan *plan = &job->plan;
    skinny_kernel kernel = p->b[0].dtype == INVAR_DTYPE_INT4    ? invar_skinny_int4(plan)
                           : p->b[0].dtype == INVAR_DTYPE_MXFP8 ? invar_skinny_mxfp8(plan)
                                                                : invar_skinny_bf16(plan);
    int blocks = invar_cuda_of(dev)->multiprocessors;
    size_t shared = 2 * HEAD_BYTES + (size_t)plan->stages * plan->stage_bytes + PANEL_OVERRUN;

    if (!p->start && job->tiles < blocks)
        blocks = job->tiles;
    return invar_launch_early(dev, p->op, kernel, (unsigned)blocks, (unsigned)plan->warps * 32 + 32,
                              shared)(*job);
}

bool invar_skinny_takes(const invar_device *dev, const invar_gemm *p)
{
    const invar_gemm_operand *a = &p->a[0], *b = &p->b[0];
    bool codes = b->dtype == INVAR_DTYPE_INT4 || b->dtype == INVAR_DTYPE_MXFP8;
    int64_t max_rows = p->start ? p->groups * MAX_GROUP_ROWS : (int64_t)MAX_ROWS;

    if (dev->numerics != INVAR_NUMERICS_SM90 || p->parts != 1 || p->shards != 1)
        return false;
    if (a->dtype != INVAR_DTYPE_BF16 || (b->dtype != INVAR_DTYPE_BF16 && !codes) || a->k_outer ||
        b->k_outer)
        return false;
    if (p->groups < 1 || p->groups > MAX_GROUPS || p->rows < 1 || p->rows > max_rows ||
        p->cols < 1 || p->cols > MAX_EXTENT / p->groups || p->k[0] < 1 || p->k[0] > MAX_EXTENT)
        return false;
    // the scales of a feature begin at multiples of 4 bytes
    if (p->k[0] % (b->dtype == INVAR_DTYPE_MXFP8 ? 2 * PANEL : PANEL) != 0 ||
        (codes && (uintptr_t)b->scale % 4 != 0))
        return false;
    return invar_tensor_map_takes(a->data, a->stride * 2) &&
           invar_tensor_map_takes(b->data, b->stride * invar_dtype_bits(b->dtype) / 8);
}

bool invar_skinny_takes_set(const invar_device *dev, const invar_gemm_set *set)
{
    const invar_gemm *first = &set->product[0];
    int64_t cols = 0;

    for (int i = 0; i < set->count; i++) {
        const invar_gemm *p = &set->product[i];
        if (!invar_skinny_takes(dev, p) || p->start || p->out_dtype != first->out_dtype ||
            p->b[0].dtype != first->b[0].dtype)
            return false;
        cols += p->cols;
    }
    return cols <= MAX_EXTENT && (!set->act || (first->b[0].dtype == INVAR_DTYPE_BF16 &&
                                                first->out_dtype == INVAR_DTYPE_BF16));
}

invar_status invar_skinny_set(const invar_device *dev, const invar_gemm_set *set)
{
    skinny_plan plan = make_plan(dev, set);
    skinny_job job;

    INVAR_TRY(make_job(&job, set, &plan));
    return launch_job(dev, &set->product[0], &job);
}

invar_status invar_skinny(const invar_device *dev, const invar_gemm *p)
{
    invar_gemm_set set = {};

    set.product[0] = *p;
    set.count = 1;
    return invar_skinny_set(dev, &set);
}
