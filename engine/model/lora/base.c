/*
 * base.c - the weights of a frozen base.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/lora/base.h"

#include "base/alloc.h"
#include "engine/model/digests.h"

#include "base/invar_banned.h"

static invar_status hash_weights(invar_digest *of, const invar_model *model,
                                 const invar_device *dev)
{
    invar_status status = INVAR_OK;
    invar_digests digests;

    invar_digests_init(&digests, dev);
    for (int64_t i = 0; i < model->n_base && status == INVAR_OK; i++)
        status = invar_digests_add(&digests, &model->base[i].weight, 1);
    if (status == INVAR_OK)
        status = invar_digests_read(of, &digests);
    invar_digests_release(&digests);
    return status;
}

invar_status invar_base_hash(invar_digest *out, const invar_model *model, const invar_device *dev)
{
    invar_digest *of = NULL;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&of, (size_t)model->n_base, sizeof *of, "digests of a base"));
    status = hash_weights(of, model, dev);
    if (status == INVAR_OK)
        invar_hash_bytes(out, of, (size_t)model->n_base * sizeof *of);
    invar_free(of);
    return status;
}
