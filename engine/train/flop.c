/*
 * flop.c - counts the floating-point operations of training from the sizes of the model.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/flop.h"

#include "engine/train/micro_batch.h"

#include "base/invar_banned.h"

/* Operations per row of the layers, per row of the head, and per query-key pair of one layer. */
typedef struct flop_rates {
    double row, head, pair;
} flop_rates;

static void add_param_rates(flop_rates *to, const invar_model_spec *s, const invar_param *p,
                            bool learns)
{
    // forward, gradient of the input, and gradient of the weight if it is trained
    double flop = 2.0 * (double)(p->rows * p->cols) * (learns ? 3.0 : 2.0);

    switch (p->kind) {
    case INVAR_PARAM_HEAD: to->head += flop; break;
    case INVAR_PARAM_EMBEDDING: to->head += s->tied && !s->value_head ? flop : 0.0; break;
    case INVAR_PARAM_LINEAR:
    case INVAR_PARAM_ROUTER: to->row += flop; break;
    case INVAR_PARAM_EXPERT:
    case INVAR_PARAM_ADAPTER:
        to->row += p->stack > 1 ? flop * (double)s->experts.per_token : flop;
        break;
    case INVAR_PARAM_NORM:
    case INVAR_PARAM_BIAS: break;
    }
}

static flop_rates flop_rates_of(const invar_model *model)
{
    const invar_model_spec *s = &model->spec;
    flop_rates found = {.pair = 3.0 * 4.0 * (double)(s->attention.heads * s->attention.head_dim)};

    for (int64_t i = 0; i < model->n_params; i++)
        add_param_rates(&found, s, &model->params[i], true);
    for (int64_t i = 0; invar_model_is_adapted(model) && i < model->n_base; i++)
        add_param_rates(&found, s, &model->base[i], false);
    return found;
}

/* Returns the number of query-key pairs in all layers; a query sees itself. */
static double count_attention_pairs(const invar_model_spec *s, int64_t rows)
{
    double all = 0.5 * (double)rows * (double)(rows + 1), within = all;
    int64_t windowed = s->attention.window ? s->layers - s->attention.window_from : 0;

    if (s->attention.window &&
        rows > s->attention.window) // queries after the first window see `window` keys each
        within = 0.5 * (double)s->attention.window * (double)(s->attention.window + 1) +
                 (double)(rows - s->attention.window) * (double)s->attention.window;
    return (double)(s->layers - windowed) * all + (double)windowed * within;
}

double invar_flop_train(const invar_model *model, const invar_rl_sample *samples, int64_t count)
{
    const flop_rates rate = flop_rates_of(model);
    double flop = 0.0;

    for (int64_t i = 0; i < count; i++) {
        const invar_rl_sample *s = &samples[i];
        int64_t rows = invar_micro_batch_rows(s), first = 0;

        flop += rate.row * (double)rows + rate.head * (double)invar_rl_sample_response(s);
        for (int64_t k = 0; k < s->n_branch_starts;
             first = s->branch_starts[k++]) // a branch does not see earlier branches
            flop += rate.pair * count_attention_pairs(&model->spec, s->branch_starts[k] - first);
        flop += rate.pair * count_attention_pairs(&model->spec, rows - first);
    }
    return flop;
}
