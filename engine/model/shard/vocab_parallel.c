/*
 * vocab_parallel.c - computes the index arrays of a vocabulary that ranks divide.
 *
 * The id ranges follow from the logical split, so every rank computes the owner of any id without
 * communication.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/shard/vocab_parallel.h"

#include "base/alloc.h"
#include "base/block_carver.h"
#include "kernels-deterministic/math/shards.h"

#include "base/invar_banned.h"

void invar_vocab_parallel_release(invar_vocab_parallel *vocab)
{
    invar_free(vocab->memory[0]);
    invar_free(vocab->memory[1]);
    *vocab = (invar_vocab_parallel){0};
}

bool invar_vocab_parallel_divided(const invar_param *param)
{
    return param->local.n_shards > 0 && param->local.n_shards < param->split.shards;
}

/* First id of a rank; the number of ids for the rank after the last. */
static int64_t first_id(const invar_param *p, const invar_model_partition *part, int32_t rank)
{
    return invar_shard_start(p->rows, p->split.atom, p->split.shards,
                             rank * (p->split.shards / part->tensors));
}

static int32_t owner_of(const invar_param *p, const invar_model_partition *part, int32_t id)
{
    int32_t rank = 0;

    while (rank + 1 < part->tensors && id >= first_id(p, part, rank + 1))
        rank++;
    return rank;
}

/* Ensures that block `which` has a capacity of `bytes`. */
static invar_status ensure_block(invar_vocab_parallel *vocab, int which, size_t bytes)
{
    size_t room = bytes + bytes / 8;

    if (bytes <= vocab->bytes[which])
        return INVAR_OK;
    invar_free(vocab->memory[which]);
    vocab->memory[which] = NULL;
    vocab->bytes[which] = 0;
    INVAR_TRY(invar_alloc(&vocab->memory[which], room, 1, "the places of ids"));
    vocab->bytes[which] = room;
    return INVAR_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

invar_status invar_vocab_parallel_rows(invar_vocab_parallel *vocab, const invar_param *embedding,
                                       const invar_model_partition *part, const int32_t *ids,
                                       int64_t count, const invar_index_range *wanted)
{
    size_t bytes = (size_t)count * sizeof *ids;
    invar_carver c;

    INVAR_TRY(ensure_block(vocab, 0, 3 * (bytes + INVAR_ALIGN)));
    c = (invar_carver){vocab->memory[0], 0};
    vocab->own_ids = invar_carve(&c, bytes);
    vocab->own_d_ids = invar_carve(&c, bytes);
    vocab->picked = invar_carve(&c, bytes);
    for (int64_t i = 0; i < count; i++) {
        int32_t owner = owner_of(embedding, part, ids[i]);
        bool own = owner == part->tensor;
        vocab->own_ids[i] = own ? (int32_t)(ids[i] - embedding->local.row) : 0;
        vocab->own_d_ids[i] =
            own ? vocab->own_ids[i] : (int32_t)(embedding->local.rows + i % INVAR_SPARE_ROWS);
        if (i >= wanted->first && i < wanted->first + wanted->count)
            vocab->picked[i - wanted->first] = (int32_t)(owner * wanted->count + i - wanted->first);
    }
    return INVAR_OK;
}

/* ---- head ------------------------------------------------------------------------------------ */

static int64_t chunks_of(int64_t ids)
{
    return (ids + INVAR_VOCAB_PARALLEL_CHUNK - 1) / INVAR_VOCAB_PARALLEL_CHUNK;
}

int64_t invar_vocab_parallel_chunks(const invar_param *head)
{
    return chunks_of(head->rows);
}

int64_t invar_vocab_parallel_part_chunks(const invar_param *head, const invar_model_partition *part)
{
    int64_t most = 0;

    for (int32_t r = 0; r < part->tensors; r++) {
        int64_t own = chunks_of(first_id(head, part, r + 1) - first_id(head, part, r));
        most = own > most ? own : most;
    }
    return most + 1;
}

/*
 * Writes the chunk indices of one row of logits, in the gathered parts of ranks with `rows` rows
 * each.
 */
static void list_chunks(int32_t *out, const invar_param *head, const invar_model_partition *part,
                        int64_t rows, int64_t row)
{
    int64_t width = invar_vocab_parallel_part_chunks(head, part);

    for (int32_t r = 0; r < part->tensors; r++) {
        int64_t first = chunks_of(first_id(head, part, r));
        int64_t end = chunks_of(first_id(head, part, r + 1));
        for (int64_t c = first; c < end; c++)
            *out++ = (int32_t)((r * rows + row) * width + c - first);
    }
}

invar_status invar_vocab_parallel_head(invar_vocab_parallel *vocab, const invar_param *head,
                                       const invar_model_partition *part, const int32_t *targets,
                                       int64_t count, int64_t rows)
{
    int64_t chunks = invar_vocab_parallel_chunks(head);
    size_t target_bytes = (size_t)count * sizeof *targets;
    size_t chunk_bytes = (size_t)(rows * chunks) * sizeof *vocab->chunks;
    invar_carver c;

    if (rows * part->tensors * invar_vocab_parallel_part_chunks(head, part) > INT32_MAX)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "logits of more than 2^31 chunks at a time: lower rollout-concurrency");
    INVAR_TRY(ensure_block(vocab, 1, target_bytes + chunk_bytes + 2 * INVAR_ALIGN));
    c = (invar_carver){vocab->memory[1], 0};
    vocab->own_targets = invar_carve(&c, target_bytes);
    vocab->chunks = invar_carve(&c, chunk_bytes);
    for (int64_t i = 0; targets && i < count; i++)
        vocab->own_targets[i] = owner_of(head, part, targets[i]) == part->tensor
                                    ? (int32_t)(targets[i] - head->local.row)
                                    : (int32_t)head->local.rows;
    for (int64_t i = 0; i < rows; i++)
        list_chunks(vocab->chunks + i * chunks, head, part, rows, i);
    return INVAR_OK;
}
