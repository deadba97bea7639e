/*
 * begin.c - begins runs and their segments: identity, facts about the process, position and uuid.
 *
 * begin and resume are one transaction each. A new segment continues from a step of the run whose
 * chain the ledger knows, so a checkpoint of another run is rejected. The position of the writer is
 * restored if the transaction fails, and the points have to be defined again after it succeeds.
 *
 * Invariants: L4, L6, L7 (docs/ledger.md)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/sort.h"
#include "ledger/internal.h"
#include "ledger/provenance.h"
#include "ledger/validate.h"

#include "base/invar_banned.h"

/* ---- facts ----------------------------------------------------------------------------------- */

static invar_status check_facts(const invar_ledger_provenance *c)
{
    for (size_t i = 0; i < c->n_facts; i++) {
        INVAR_TRY(invar_ledger_validate_name("a fact's scope", c->facts[i].scope));
        INVAR_TRY(invar_ledger_validate_name("a fact's key", c->facts[i].key));
        INVAR_TRY(invar_ledger_validate_text("a fact's value", c->facts[i].value));
    }
    for (size_t i = 0; i < c->n_objects; i++) {
        INVAR_TRY(invar_ledger_validate_name("an object's scope", c->objects[i].scope));
        INVAR_TRY(invar_ledger_validate_name("an object's key", c->objects[i].key));
        INVAR_TRY(invar_ledger_validate_name("an object's kind", c->objects[i].kind));
    }
    return INVAR_OK;
}

static invar_status add_fact(invar_ledger *ledger, const invar_ledger_fact *fact)
{
    return invar_ledger_add(
        ledger, INVAR_LEDGER_TABLE_FACT,
        (invar_ledger_row_values){
            invar_ledger_value_int(ledger->position.seg), invar_ledger_value_text(fact->scope),
            invar_ledger_value_text(fact->key), invar_ledger_value_int(ledger->position.entry),
            invar_ledger_value_text(fact->value)});
}

/* True if the caller gives a fact or object of this name, which replaces the automatic one. */
static bool is_fact_of_caller(const invar_ledger_provenance *c, const char *scope, const char *key)
{
    for (size_t i = 0; i < c->n_facts; i++)
        if (strcmp(c->facts[i].scope, scope) == 0 && strcmp(c->facts[i].key, key) == 0)
            return true;
    for (size_t i = 0; i < c->n_objects; i++)
        if (strcmp(c->objects[i].scope, scope) == 0 && strcmp(c->objects[i].key, key) == 0)
            return true;
    return false;
}

/* *out = whether an earlier segment of the run has stored the object. */
static invar_status object_known(bool *out, invar_ledger *ledger, const invar_digest *hash)
{
    invar_sql_stmt *stmt;
    invar_status status =
        INVAR_SQL_QUERY(&stmt, ledger->sql, "SELECT 1 FROM object WHERE run = ?1 AND hash = ?2",
                        ledger->position.run);

    if (status == INVAR_OK)
        status = invar_sql_bind(stmt, 2, invar_ledger_value_digest(hash));
    *out = invar_sql_next(&status, stmt);
    return invar_sql_end(stmt, status);
}

static invar_status add_object(invar_ledger *ledger, const invar_ledger_object *object)
{
    char hex[INVAR_DIGEST_HEX_SIZE];
    invar_digest hash;
    bool known;

    invar_hash_bytes(&hash, object->data, object->bytes);
    invar_digest_format(hex, &hash);
    INVAR_TRY(object_known(&known, ledger, &hash));
    if (!known)
        INVAR_TRY(invar_ledger_add(
            ledger, INVAR_LEDGER_TABLE_OBJECT,
            (invar_ledger_row_values){invar_ledger_value_digest(&hash),
                                      invar_ledger_value_int(ledger->position.entry),
                                      invar_ledger_value_text(object->kind),
                                      invar_ledger_value_blob(object->data, object->bytes)}));
    return add_fact(ledger, &(invar_ledger_fact){object->scope, object->key, hex});
}

static invar_status add_facts(invar_ledger *ledger, const invar_ledger_provenance *c,
                              const invar_provenance *found)
{
    size_t n_facts = 0, n_objects = 0;
    const invar_ledger_fact *facts = found ? invar_provenance_facts(&n_facts, found) : NULL;
    const invar_ledger_object *objects = found ? invar_provenance_objects(&n_objects, found) : NULL;

    for (size_t i = 0; i < n_facts; i++)
        if (!is_fact_of_caller(c, facts[i].scope, facts[i].key))
            INVAR_TRY(add_fact(ledger, &facts[i]));
    for (size_t i = 0; i < n_objects; i++)
        if (!is_fact_of_caller(c, objects[i].scope, objects[i].key))
            INVAR_TRY(add_object(ledger, &objects[i]));
    for (size_t i = 0; i < c->n_facts; i++)
        INVAR_TRY(add_fact(ledger, &c->facts[i]));
    for (size_t i = 0; i < c->n_objects; i++)
        INVAR_TRY(add_object(ledger, &c->objects[i]));
    return INVAR_OK;
}

/* Adds segment position.seg, which begins at the position, and its facts. */
static invar_status add_segment(invar_ledger *ledger, const invar_ledger_provenance *c,
                                const invar_provenance *found)
{
    INVAR_TRY(invar_ledger_add(
        ledger, INVAR_LEDGER_TABLE_SEGMENT,
        (invar_ledger_row_values){invar_ledger_value_int(ledger->position.seg),
                                  invar_ledger_value_int(ledger->position.entry),
                                  invar_ledger_value_int(ledger->position.step),
                                  invar_ledger_value_digest(&ledger->position.chain)}));
    return add_facts(ledger, c, found);
}

/* ---- a new run ------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b)
{
    const invar_ledger_pair *x = a, *y = b;

    return strcmp(x->key, y->key);
}

/* Sorts the pairs by key into `order` and hashes keys and values in that order. */
static invar_status check_identity(invar_digest *hash_out, const invar_ledger_pair **order,
                                   const invar_ledger_pair *pairs, size_t count)
{
    invar_hasher hasher;

    for (size_t i = 0; i < count; i++) {
        INVAR_TRY(invar_ledger_validate_name("a key of the identity", pairs[i].key));
        INVAR_TRY(invar_ledger_validate_text("a value of the identity", pairs[i].value));
        order[i] = &pairs[i];
    }
    INVAR_TRY(invar_sort((const void **)order, count, by_key));
    invar_hasher_init(&hasher);
    for (size_t i = 0; i < count; i++) {
        invar_ledger_value key = invar_ledger_value_text(order[i]->key);
        invar_ledger_value value = invar_ledger_value_text(order[i]->value);
        if (i > 0 && strcmp(order[i - 1]->key, order[i]->key) == 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "ledger: the key \"%.100s\" is twice in the identity", order[i]->key);
        invar_ledger_value_hash(&hasher, &key);
        invar_ledger_value_hash(&hasher, &value);
    }
    invar_hasher_final(hash_out, &hasher);
    return INVAR_OK;
}

invar_status invar_ledger_identity(invar_digest *out, const invar_ledger_pair *identity,
                                   size_t count)
{
    const invar_ledger_pair **order = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(order, count, "an identity"));
    status = check_identity(out, order, identity, count);
    invar_free(order);
    return status;
}

static invar_status check_run(const invar_ledger_run *run)
{
    static const char *const words[] = {"train", "eval", "ci", "ab", "bisect", "replay"};
    static const invar_choices kinds = {words, sizeof words / sizeof *words};

    INVAR_TRY(invar_ledger_validate_name("a run's name", run->name));
    INVAR_TRY(invar_ledger_validate_word("a run's kind", run->kind, &kinds));
    if (run->parent)
        INVAR_TRY(invar_ledger_validate_name("a run's parent", run->parent));
    if (run->fork_chain && (!run->parent || run->fork_step < 0))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "ledger: a run continues from the chain of %s",
                          run->parent ? "no step" : "no parent");
    return check_facts(&run->circumstances);
}

static invar_status make_uuid(char out[INVAR_LEDGER_UUID_SIZE])
{
    invar_digest random;

    if (getrandom(random.bytes, sizeof random.bytes, 0) != (ssize_t)sizeof random.bytes)
        return INVAR_FAIL(INVAR_E_IO, errno, "ledger: the system has no random bytes: %s",
                          strerror(errno));
    invar_digest_format(out, &random);
    return INVAR_OK;
}

static invar_status add_run(invar_ledger *ledger, const invar_ledger_run *run,
                            const invar_digest *identity, const invar_ledger_pair *const *order)
{
    char uuid[INVAR_LEDGER_UUID_SIZE];

    INVAR_TRY(make_uuid(uuid));
    INVAR_TRY(invar_ledger_add(
        ledger, INVAR_LEDGER_TABLE_RUN,
        (invar_ledger_row_values){
            invar_ledger_value_int(ledger->position.entry), invar_ledger_value_text(uuid),
            invar_ledger_value_text(run->name), invar_ledger_value_text(run->kind),
            invar_ledger_value_digest(identity), invar_ledger_value_text(run->parent),
            run->parent ? invar_ledger_value_int(run->fork_step) : invar_ledger_value_null()}));
    for (size_t i = 0; i < run->n_identity; i++)
        INVAR_TRY(invar_ledger_add(
            ledger, INVAR_LEDGER_TABLE_IDENTITY,
            (invar_ledger_row_values){invar_ledger_value_text(order[i]->key),
                                      invar_ledger_value_int(ledger->position.entry),
                                      invar_ledger_value_text(order[i]->value)}));
    return INVAR_OK;
}

static invar_status gather_facts(invar_provenance **out, const invar_ledger_provenance *c)
{
    *out = NULL;
    return c->no_auto_facts ? INVAR_OK : invar_provenance_gather(out, c->build);
}

/*
 * Ends the transaction of begin or resume. A failure restores the position that was `before`;
 * otherwise the points of the previous run or segment are dropped.
 */
static invar_status commit_segment(invar_ledger *ledger, invar_status status,
                                   const invar_ledger_position *before)
{
    status = invar_ledger_commit(ledger, status, &ledger->position);
    if (status != INVAR_OK) {
        ledger->position = *before;
        return status;
    }
    invar_free(ledger->definition.rooted);
    ledger->definition = (invar_ledger_manifest){.defined = false};
    return INVAR_OK;
}

/* The transaction of begin. */
static invar_status run_begin_transaction(invar_ledger *ledger, const invar_ledger_run *run,
                                          const invar_digest *identity,
                                          const invar_ledger_pair *const *order,
                                          const invar_provenance *found)
{
    invar_ledger_position before = ledger->position;
    int64_t last = 0;
    invar_status status;

    INVAR_TRY(invar_ledger_begin_transaction(ledger, "begin", INVAR_DURABILITY_PROCESS));
    ledger->position = (invar_ledger_position){.step = -1};
    if (run->fork_chain) // the run begins after a step of its parent
        ledger->position =
            (invar_ledger_position){.step = run->fork_step, .chain = *run->fork_chain};
    status = invar_sql_query_int(&last, ledger->sql, "SELECT max(run) FROM run", 0);
    ledger->position.run = last + 1;
    if (status == INVAR_OK)
        status = add_run(ledger, run, identity, order);
    if (status == INVAR_OK)
        status = add_segment(ledger, &run->circumstances, found);
    return commit_segment(ledger, status, &before);
}

invar_status invar_ledger_begin(invar_ledger *ledger, const invar_ledger_run *run)
{
    const invar_ledger_pair **order;
    invar_provenance *found = NULL;
    invar_digest identity;
    invar_status status;

    INVAR_TRY(check_run(run));
    INVAR_TRY(INVAR_ALLOC(order, run->n_identity, "an identity"));
    status = check_identity(&identity, order, run->identity, run->n_identity);
    if (status == INVAR_OK)
        status = gather_facts(&found, &run->circumstances);
    if (status == INVAR_OK)
        status = run_begin_transaction(ledger, run, &identity, order, found);
    invar_provenance_free(found);
    invar_free(order);
    return status;
}

/* ---- a new segment --------------------------------------------------------------------------- */

/*
 * *step_out = whether the run has the step, *chain_out = whether an execution of it has the chain.
 * A step that was executed twice can be resumed from a checkpoint of either execution. The step of
 * the parent that the run begins after counts, too.
 */
static invar_status find_chain(bool *step_out, bool *chain_out, invar_ledger *ledger, int64_t run,
                               int64_t step, const invar_digest *chain)
{
    invar_sql_stmt *stmt;
    invar_digest found;
    invar_status status =
        INVAR_SQL_QUERY(&stmt, ledger->sql,
                        "SELECT chain FROM step WHERE run = ?1 AND step = ?2 UNION ALL "
                        "SELECT chain FROM segment WHERE run = ?1 AND seg = 0 AND after_step = ?2",
                        run, step);

    *step_out = *chain_out = false;
    while (invar_sql_next(&status, stmt)) {
        *step_out = true;
        *chain_out |= invar_sql_digest(&found, stmt, 0) && invar_digest_equal(&found, chain);
    }
    return invar_sql_end(stmt, status);
}

static invar_status load_position(invar_ledger_position *out, invar_ledger *ledger,
                                  const invar_ledger_summary *run, int64_t after_step,
                                  const invar_digest *chain)
{
    bool has_step, has_chain;

    *out = (invar_ledger_position){.run = run->run,
                                   .seg = run->segments,
                                   .entry = run->entries,
                                   .entry_chain = run->integrity,
                                   .step = after_step};
    if (after_step < 0)
        return INVAR_OK;
    INVAR_TRY(find_chain(&has_step, &has_chain, ledger, run->run, after_step, chain));
    if (!has_step)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "ledger %.1000s: it has no step %" PRId64
                          " of %.40s; the checkpoint is of "
                          "another run, or newer than this ledger",
                          invar_sql_path(ledger->sql), after_step, run->name);
    if (!has_chain)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                          "ledger %.1000s: its chain at step %" PRId64
                          " of %.40s is not the checkpoint's; they do not belong together",
                          invar_sql_path(ledger->sql), after_step, run->name);
    out->chain = *chain;
    return INVAR_OK;
}

invar_status invar_ledger_resume(invar_ledger *ledger, const char *uuid, int64_t after_step,
                                 const invar_digest *chain,
                                 const invar_ledger_provenance *provenance)
{
    static const invar_ledger_provenance none = {.no_auto_facts = false};
    invar_ledger_position before = ledger->position, next;
    invar_provenance *found;
    invar_ledger_summary run;
    invar_status status;

    if (after_step < -1 || (after_step >= 0 && !chain))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "ledger: a resume after step %" PRId64 "%s",
                          after_step, chain ? "" : ", without a chain");
    if (!provenance)
        provenance = &none;
    INVAR_TRY(check_facts(provenance));
    INVAR_TRY(invar_ledger_find(&run, ledger, uuid));
    INVAR_TRY(load_position(&next, ledger, &run, after_step, chain));
    INVAR_TRY(gather_facts(&found, provenance));
    status = invar_ledger_begin_transaction(ledger, "resume", INVAR_DURABILITY_PROCESS);
    if (status == INVAR_OK) {
        ledger->position = next;
        status = commit_segment(ledger, add_segment(ledger, provenance, found), &before);
    }
    invar_provenance_free(found);
    return status;
}
