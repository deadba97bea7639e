/*
 * identity.c - what a run is asked to do, and the ledger that remembers it.
 *
 * The identity is every semantic key, and the hashes of what the free keys only name: model,
 * initial weights, tokenizer, data. Free keys and the revisions of ops are facts beside it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/run/loop.h"

#include "base/invar_banned.h"

#define EXTRA 8 /* pairs beside the keys */

typedef struct identity {
    invar_ledger_pair pairs[INVAR_KEY_COUNT + EXTRA];
    size_t count;
    char hex[EXTRA][INVAR_DIGEST_HEX_SIZE];
    size_t n_hex;
} identity;

static void add_digest(identity *id, const char *key, const invar_digest *digest)
{
    INVAR_CHECK(id->n_hex < EXTRA);
    invar_digest_format(id->hex[id->n_hex], digest);
    id->pairs[id->count++] = (invar_ledger_pair){key, id->hex[id->n_hex++]};
}

static invar_status hash_spec(invar_digest *out, const invar_session *s)
{
    char *text = NULL;
    size_t bytes;

    INVAR_TRY(invar_model_spec_json(&text, &bytes, &s->spec, "float32"));
    invar_hash_bytes(out, text, bytes);
    invar_free(text);
    return INVAR_OK;
}

static invar_status add_model(identity *id, const char *key, const invar_model *model,
                              const invar_device *dev)
{
    invar_digest digest;

    if (!model)
        return INVAR_OK;
    INVAR_TRY(invar_model_hash(&digest, model, dev));
    add_digest(id, key, &digest);
    return INVAR_OK;
}

static invar_status gather(identity *id, const invar_loop *loop)
{
    const invar_session *s = &loop->session;
    invar_digest digest;

    id->count = id->n_hex = 0;
    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_recipe_entry e;
        invar_recipe_entry_get(&e, loop->recipe, i);
        if (e.key->effect == INVAR_RECIPE_EFFECT_SEMANTIC)
            id->pairs[id->count++] = (invar_ledger_pair){e.key->name, e.text ? e.text : ""};
    }
    INVAR_TRY(hash_spec(&digest, s));
    add_digest(id, "model hash", &digest);
    add_digest(id, "weights hash", &s->weights);
    INVAR_TRY(add_model(id, "teacher hash", s->teacher, &s->dev));
    INVAR_TRY(add_model(id, "critic hash", s->critic, &s->dev));
    invar_tokenizer_hash(&digest, s->tokenizer);
    add_digest(id, "tokenizer hash", &digest);
    if (s->data) {
        invar_dataset_hash(&digest, s->data);
        add_digest(id, "data hash", &digest);
    }
    return INVAR_OK;
}

invar_status invar_loop_identify(invar_loop *loop)
{
    identity id;

    INVAR_TRY(gather(&id, loop));
    return invar_ledger_identity(&loop->identity, id.pairs, id.count);
}

/* ---- the ledger ------------------------------------------------------------------------------ */

typedef struct facts {
    invar_ledger_fact items[INVAR_KEY_COUNT + INVAR_OP_COUNT];
    size_t count;
    char revision[INVAR_OP_COUNT][16];
} facts;

static void gather_facts(facts *f, const invar_loop *loop)
{
    f->count = 0;
    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_recipe_entry e;
        invar_recipe_entry_get(&e, loop->recipe, i);
        if (e.key->effect == INVAR_RECIPE_EFFECT_FREE && e.text && e.text[0])
            f->items[f->count++] = (invar_ledger_fact){"free", e.key->name, e.text};
    }
    for (int op = 0; op < INVAR_OP_COUNT; op++) {
        (void)snprintf(f->revision[op], sizeof f->revision[op], "%d",
                       invar_op_revision((invar_op)op));
        f->items[f->count++] =
            (invar_ledger_fact){"op", invar_op_name((invar_op)op), f->revision[op]};
    }
}

static invar_status begin(invar_loop *loop, const invar_ledger_circumstances *circumstances)
{
    identity id;
    invar_ledger_run run = {.name = loop->name,
                            .kind = loop->options->kind ? loop->options->kind : "train",
                            .circumstances = *circumstances};

    INVAR_TRY(gather(&id, loop));
    run.identity = id.pairs;
    run.n_identity = id.count;
    return invar_ledger_begin(loop->ledger, &run);
}

/* The run that the ledger has is the one that is asked for. */
static invar_status check_same(const invar_loop *loop, const invar_ledger_summary *found)
{
    if (invar_digest_equal(&found->identity, &loop->identity))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "%.150s holds another run: a semantic key, the data or the weights differ; "
                      "choose another folder with --run",
                      loop->ledger_path);
}

static invar_status find_run(bool *found_out, invar_ledger_summary *summary, invar_ledger *ledger)
{
    invar_status status = invar_ledger_find(summary, ledger, NULL);

    *found_out = status == INVAR_OK;
    if (status == INVAR_E_NOTFOUND) {
        invar_error_clear();
        return INVAR_OK;
    }
    return status;
}

invar_status invar_loop_open_ledger(invar_loop *loop, int64_t step, const invar_digest *chain)
{
    invar_ledger_options options = {.create = true, .writer = "invar train"};
    invar_ledger_circumstances circumstances = {0};
    invar_ledger_summary summary;
    facts known;
    bool found;

    INVAR_TRY(invar_ledger_open(&loop->ledger, loop->ledger_path, &options));
    gather_facts(&known, loop);
    circumstances.facts = known.items;
    circumstances.n_facts = known.count;
    INVAR_TRY(find_run(&found, &summary, loop->ledger));
    if (found) {
        INVAR_TRY(check_same(loop, &summary));
        INVAR_TRY(invar_ledger_resume(loop->ledger, summary.uuid, step, chain, &circumstances));
    } else if (step >= 0) {
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                          "the checkpoint goes on after step %" PRId64
                          ", but %.120s has no run: give the run's folder with --run, or "
                          "start a new run from its weights with ref-load",
                          step, loop->ledger_path);
    } else {
        INVAR_TRY(begin(loop, &circumstances));
        INVAR_TRY(invar_ledger_find(&summary, loop->ledger, NULL));
    }
    memcpy(loop->uuid, summary.uuid, sizeof loop->uuid);
    loop->run_number = summary.run;
    loop->recorded = summary.last_step;
    return INVAR_OK;
}
