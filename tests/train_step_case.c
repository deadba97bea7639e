/*
 * train_step_case.c - one training step on one rank or on several, with scoring before it.
 *
 * Ranks compute their part of the step with the trainer of the engine. The results are compared
 * with those of one rank: scores, log-probs, entropies, metrics, routing and the gathered
 * gradients.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/train_step_case.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/model/shard/zero_comm.h"
#include "engine/ranks/layout/rank_collectives.h"
#include "engine/train/micro_batch.h"
#include "tests/support.h"

void train_step_case_route(invar_rl_samples *samples, const invar_model *model)
{
    int64_t route = invar_model_sparse_layers(model) * model->spec.experts.per_token;

    for (int64_t i = 0; i < samples->count; i++) {
        invar_rl_sample *s = &samples->items[i];
        int64_t n = invar_micro_batch_rows(s) * route;

        assert_ok(INVAR_ALLOC(s->routing, (size_t)n, "routing"));
        for (int64_t j = 0; j < n; j++)
            s->routing[j] = (int32_t)(i + j) % 6;
        s->route_size = route;
    }
}

void train_step_case_init(train_step_case *l, const invar_model *model,
                          const invar_rl_samples *samples, const invar_device *dev)
{
    bool values = model->spec.value_head;

    *l = (train_step_case){
        .near = *dev, .model = model, .samples = samples, .failing = -1, .only = -1};
    l->near.pool = NULL; // a rank is a thread
    for (int64_t i = 0; i < SAMPLES; i++) {
        l->group[i] = samples->items[i].group;
        l->start[i + 1] = l->start[i] + invar_rl_sample_response(&samples->items[i]);
        l->reward[i] = (float)(i % 2);
    }
    assert_true(l->start[SAMPLES] <= MOST);
    for (uint64_t t = 0; t < MOST; t++) {
        l->mask[t] = t % 5 != 3;
        l->old[t] = invar_test_normal(1, t, 0.1f) - 4.5f;
        l->ref[t] = invar_test_normal(2, t, 0.1f) - 4.5f;
        l->advantage[t] = invar_test_normal(3, t, 1.0f);
        l->values[t] = invar_test_normal(4, t, 0.1f);
    }
    l->rl = (invar_rl_options){.loss = values ? INVAR_LOSS_VALUE : INVAR_LOSS_POLICY,
                               .estimator = INVAR_ESTIMATOR_GRPO,
                               .kl.type = INVAR_KL_K3,
                               .kl.use_loss = true,
                               .kl.loss_coef = 0.1f,
                               .clip.low = 0.2f,
                               .clip.high = 0.3f,
                               .clip.value = 0.2f,
                               .entropy_coef = 0.01f,
                               .gamma = 1.0f,
                               .lambd = 1.0f};
    l->batch = (invar_rl_batch){.samples = SAMPLES,
                                .offsets = l->start,
                                .group = l->group,
                                .mask = l->mask,
                                .reward = l->reward,
                                .old_logp = l->old,
                                .rollout_logp = l->old,
                                .copied = true,
                                .ref_logp = l->ref,
                                .values = l->values};
}

typedef struct loss_state {
    const train_step_case *l;
    const invar_layout *layout;
    invar_loss *loss;
    int64_t next;
    bool fails;
} loss_state;

/* Zeroes the gradients of all samples except `only`, if that is set. */
static void zero_other_samples(const train_step_case *l, int64_t first, int64_t count,
                               float *gradient)
{
    const int64_t *start = l->start;

    for (int64_t i = first; l->only >= 0 && i < first + count; i++)
        if (i != l->only)
            memset(gradient + (start[i] - start[first]), 0,
                   (size_t)(start[i + 1] - start[i]) * sizeof *gradient);
}

/* Replaces the gradients of the loss on all ranks by those of rank 0. Collective. */
static invar_status broadcast_gradients(const loss_state *l, int64_t first, int64_t count,
                                        float *dnow)
{
    size_t bytes = (size_t)(l->l->start[first + count] - l->l->start[first]) * sizeof *dnow;

    if (!invar_ranks_is_leader(l->layout))
        memset(dnow, 0xff, bytes);
    return invar_ranks_broadcast(l->layout, "loss", 0, dnow, bytes);
}

static invar_status run_loss(void *payload, int64_t first, int64_t count, const float *now,
                             const float *entropy, float *dnow, float *dentropy)
{
    loss_state *l = payload;

    if (first != l->next)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "sample %d is asked for, not %d", (int)first,
                          (int)l->next);
    l->next += count;
    if (l->fails && l->next == SAMPLES)
        return INVAR_FAIL(INVAR_E_STATE, 0, "the loss of sample %d is no number", (int)first);
    INVAR_TRY(invar_loss_run(l->loss, first, count, now, entropy, dnow, dentropy));
    zero_other_samples(l->l, first, count, dnow);
    if (dentropy)
        zero_other_samples(l->l, first, count, dentropy);
    return l->l->led ? broadcast_gradients(l, first, count, dnow) : INVAR_OK;
}

/*
 * Gathers the gradients of the rows of all ranks for the comparison, since each rank has only the
 * sums of its own rows.
 */
static invar_status gather_gradients(const invar_grads *grads, const invar_model *model)
{
    invar_zero_comm comm = {.send_buffer = NULL};
    invar_zero_ranges ranges;
    invar_status status;

    if (!invar_zero_partition_is_divided(model))
        return INVAR_OK;
    status = invar_zero_ranges_grads(&ranges, model, INVAR_ZERO_RANGES_ALL);
    if (status == INVAR_OK)
        status = invar_zero_comm_init(&comm, &grads->dev, model->layout, &ranges);
    if (status == INVAR_OK)
        status = invar_zero_comm_gather(&comm, "gradients", grads->memory);
    invar_zero_comm_release(&comm);
    invar_zero_ranges_release(&ranges);
    return status;
}

static invar_status run_step(outcome *out, const train_step_case *l, invar_trainer *trainer,
                             const invar_model *model, int rank)
{
    bool values = model->spec.value_head;
    loss_state state = {.l = l, .layout = model->layout, .fails = rank == l->failing};
    invar_trainer_loss loss = {
        .run = run_loss, .payload = &state, .entropy = !values, .on_rank0 = l->led};
    const invar_loss_metric *metrics;
    invar_grads *grads = NULL;
    invar_status status;

    out->result = (invar_trainer_result){.train_logp = out->now, .entropy = out->entropy};
    INVAR_TRY(invar_loss_new(&state.loss, &l->batch, &l->rl, values ? NULL : l->advantage,
                             values ? l->advantage : NULL));
    status = invar_grads_new(&grads, model);
    if (status == INVAR_OK)
        status = invar_trainer_forward_backward(trainer, model, l->samples->items, SAMPLES, &loss,
                                                grads, &out->result);
    if (status == INVAR_OK)
        status = gather_gradients(grads, model);
    if (status == INVAR_OK)
        status = invar_loss_metrics(&metrics, &out->n_metrics, state.loss);
    if (status == INVAR_OK) {
        memcpy(out->metrics, metrics, out->n_metrics * sizeof *metrics);
        out->bytes = grads->bytes;
        out->grads = malloc(out->bytes);
        status = invar_device_download(&grads->dev, out->grads, grads->memory, out->bytes);
    }
    invar_grads_free(grads);
    invar_loss_free(state.loss);
    return status;
}

invar_status train_step_case_step(outcome *out, const train_step_case *l,
                                  const invar_layout *layout, const invar_model *model,
                                  const invar_device *dev)
{
    int rank = layout ? invar_comm_rank(layout->world) : 0;
    invar_trainer_options options = l->options;
    invar_trainer *trainer = NULL;
    invar_status status;

    memset(out, 0, sizeof *out);
    options.layout = layout;
    INVAR_TRY(invar_trainer_new(&trainer, dev, &options));
    status = invar_trainer_score(trainer, model, l->samples->items, SAMPLES, out->scores,
                                 out->entropies);
    if (status == INVAR_OK)
        status = run_step(out, l, trainer, model, rank);
    invar_trainer_free(trainer);
    return status;
}

/* ---- comparison ------------------------------------------------------------------------------ */

static bool metrics_differ(const outcome *a, const outcome *b)
{
    bool differ = a->n_metrics != b->n_metrics;

    for (size_t i = 0; i < a->n_metrics && !differ; i++)
        differ = strcmp(a->metrics[i].name, b->metrics[i].name) != 0 ||
                 invar_bits_differ(&a->metrics[i].value, &b->metrics[i].value, sizeof(double));
    return differ;
}

/* Compares the gradients of this rank's parameters with the expected ones. */
static bool gradients_differ(const outcome *actual, const outcome *expected,
                             const train_step_case *l, const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        if (invar_bits_differ((char *)actual->grads + (uintptr_t)p->grad.data,
                              (char *)expected->grads + (uintptr_t)l->model->params[i].grad.data,
                              (size_t)invar_param_elements(p) * sizeof(float)))
            return true;
    }
    return false;
}

invar_status train_step_case_compare(const outcome *a, const train_step_case *l,
                                     const invar_model *model, int rank)
{
    const outcome *b = l->expected;
    const struct {
        const char *what;
        bool differ;
    } parts[] = {
        {"scores", invar_bits_differ(a->scores, b->scores, sizeof a->scores)},
        {"entropies", invar_bits_differ(a->entropies, b->entropies, sizeof a->entropies)},
        {"log-probabilities", invar_bits_differ(a->now, b->now, sizeof a->now)},
        {"entropies of training", invar_bits_differ(a->entropy, b->entropy, sizeof a->entropy)},
        {"metrics", metrics_differ(a, b)},
        {"routes", a->result.routes != b->result.routes ||
                       a->result.routes_differ != b->result.routes_differ},
        {"gradients", gradients_differ(a, b, l, model)},
    };

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].differ)
            return INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d has other %s than one rank", rank,
                              parts[i].what);
    return INVAR_OK;
}
