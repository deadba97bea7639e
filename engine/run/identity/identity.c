/*
 * identity.c - computes the identity of a run, opens its ledger, and compares the ranks' inputs.
 *
 * The identity is every semantic key (keys of later versions only if they differ from their
 * default), and the hashes of what free keys name: model, initial weights, tokenizer, data of
 * training and evaluation, foreign rollouts, and the chain of a fork's parent. Free keys, op
 * revisions and plug-ins are recorded beside it as facts. A ledger continues a run only if the
 * identity is equal.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json/text.h"
#include "base/process/module.h"
#include "base/text.h"
#include "engine/record/kept_samples.h"
#include "engine/record/op_revisions.h"
#include "engine/run/evaluate.h"
#include "engine/run/train_loop.h"

#include "base/invar_banned.h"

#define EXTRA 14 /* pairs besides the keys */
#define EVAL_DATA "eval data hash"
#define ROLLOUTS "rollouts hash"

typedef struct identity {
    invar_ledger_pair pairs[INVAR_KEY_COUNT + EXTRA];
    size_t count;
    char hex[EXTRA][INVAR_DIGEST_HEX_SIZE];
    size_t n_hex;
    char judge[INVAR_TEXT_URL_SIZE], teacher[INVAR_TEXT_URL_SIZE]; /* URLs without secrets */
} identity;

/* Returns the value of a key as the ledger stores it: complete, except for the secrets of a URL. */
static const char *recorded_text(identity *id, int key, const char *text)
{
    char *shown = key == INVAR_KEY_RM_URL            ? id->judge
                  : key == INVAR_KEY_OPD_TEACHER_URL ? id->teacher
                                                     : NULL;

    if (!shown)
        return text;
    invar_text_redact_url(shown, INVAR_TEXT_URL_SIZE, text);
    return shown;
}

static void add_digest(identity *id, const char *key, const invar_digest *digest)
{
    INVAR_CHECK(id->n_hex < EXTRA);
    invar_digest_format(id->hex[id->n_hex], digest);
    id->pairs[id->count++] = (invar_ledger_pair){key, id->hex[id->n_hex++]};
}

static invar_status gather_identity(identity *id, const invar_run_storage *storage,
                                    const invar_run_models *models)
{
    const invar_run_context *s = &models->context;
    const struct {
        const invar_other_model *model;
        const char *key;
    } others[] = {{&s->reference, "reference model hash"},
                  {&s->teacher, "teacher model hash"},
                  {&s->critic, "critic model hash"}};
    const invar_digest none = {{0}};
    invar_digest digest;

    id->count = id->n_hex = 0;
    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_recipe_entry e;
        invar_recipe_entry_get(&e, storage->job->config->recipe, i);
        if (invar_recipe_entry_identifies(&e))
            id->pairs[id->count++] =
                (invar_ledger_pair){e.key->name, recorded_text(id, i, e.text ? e.text : "")};
    }
    INVAR_TRY(invar_model_spec_hash(&digest, &s->spec));
    add_digest(id, "model hash", &digest);
    for (int i = 0; i < 3; i++) {
        if (!others[i].model->own_spec)
            continue;
        INVAR_TRY(invar_model_spec_hash(&digest, &others[i].model->spec));
        add_digest(id, others[i].key, &digest);
        if (others[i].model == &s->reference)
            add_digest(id, INVAR_TRAIN_REFERENCE, &s->reference.weights);
    }
    add_digest(id, INVAR_LEDGER_WEIGHTS, &s->weights);
    if (s->spec.lora.rank > 0)
        add_digest(id, "base hash", &s->base.weights);
    if (invar_train_settings_teacher(storage->job->config))
        add_digest(id, "teacher hash", &s->teacher.weights);
    if (invar_train_settings_critic(storage->job->config))
        add_digest(id, "critic hash", &s->critic.weights);
    invar_tokenizer_hash(&digest, s->tokenizer);
    add_digest(id, "tokenizer hash", &digest);
    if (s->data) {
        invar_dataset_hash(&digest, s->data);
        add_digest(id, "data hash", &digest);
    }
    if (storage->identity.evaluates)
        add_digest(id, EVAL_DATA, &storage->identity.eval_data);
    if (!invar_digest_equal(&storage->identity.saved.foreign, &none))
        add_digest(id, ROLLOUTS, &storage->identity.saved.foreign);
    if (storage->fork.step >= 0)
        add_digest(id, "fork chain", &storage->fork.chain);
    return INVAR_OK;
}

/* Row callback: reads identity pairs of the recorded run whose files a replay does not have. */
static invar_status read_file_pair(void *payload, const char *const *columns,
                                   const invar_ledger_value *values, int count)
{
    invar_run_storage *storage = payload;

    (void)columns;
    if (!values)
        return INVAR_OK;
    INVAR_CHECK(count == 2);
    if (values[0].type != INVAR_LEDGER_TYPE_TEXT || values[1].type != INVAR_LEDGER_TYPE_TEXT)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "the ledger has a key that is no text: verify it");
    storage->identity.evaluates =
        storage->identity.evaluates || strcmp(values[0].data, EVAL_DATA) == 0;
    storage->identity.saved.on_policy =
        storage->identity.saved.on_policy && strcmp(values[0].data, ROLLOUTS) != 0;
    return invar_digest_parse(strcmp(values[0].data, EVAL_DATA) == 0
                                  ? &storage->identity.eval_data
                                  : &storage->identity.saved.foreign,
                              values[1].data);
}

static invar_status recall_files(invar_run_storage *storage)
{
    const invar_ledger_select_request request = {
        .sql = "SELECT key, value FROM identity WHERE key IN ('" EVAL_DATA "', '" ROLLOUTS "')",
        .row = read_file_pair,
        .payload = storage};
    invar_ledger *ledger = NULL;
    invar_status status;

    INVAR_TRY(invar_ledger_open(&ledger, storage->dirs.paths.ledger, &(invar_ledger_options){0}));
    status = invar_ledger_select(ledger, &request);
    invar_ledger_close(ledger);
    return status;
}

invar_status invar_run_read_sets(invar_run_storage *storage, invar_run_models *models)
{
    const invar_config *c = storage->job->config;
    invar_data_lengths *data = &storage->identity.data;

    invar_data_lengths_add(data, models->context.data, false);
    if (storage->job->options->replay) // a replay does not evaluate
        return INVAR_OK;
    data->evaluates = storage->identity.evaluates =
        invar_config_evaluates(c) && c->eval_interval > 0;
    if (!data->evaluates)
        return INVAR_OK;
    INVAR_TRY(invar_evaluate_read_sets(&models->context));
    INVAR_TRY(invar_evaluate_measure(data, &models->context));
    return invar_evaluate_hash(&storage->identity.eval_data, data, &models->context);
}

static invar_status find_saved_rollouts(invar_run_storage *storage, invar_run_models *models)
{
    const invar_config *c = storage->job->config;
    invar_digest own;
    identity id;

    storage->identity.saved = (invar_saved_rollouts){.on_policy = true};
    if (storage->job->options->replay)
        return recall_files(storage);
    INVAR_TRY(gather_identity(&id, storage, models));
    INVAR_TRY(invar_ledger_identity(&own, id.pairs, id.count));
    return invar_saved_rollouts_find(&storage->identity.saved, c, &own);
}

/* ---- the ledger ------------------------------------------------------------------------------ */

enum { NUMBERS = INVAR_OP_COUNT + 5 }; /* revisions of ops, and numbers of model, data and ranks */

typedef struct facts {
    invar_ledger_fact
        items[INVAR_KEY_COUNT + NUMBERS + 2 * INVAR_PLUGINS + INVAR_USER_FACTS_MAX + 2];
    size_t count;
    char numbers[NUMBERS][24];
    size_t n_numbers;
    char plugin[INVAR_PLUGINS][INVAR_DIGEST_HEX_SIZE];
} facts;

static void add_fact(facts *f, const char *scope, const char *key, const char *value)
{
    f->items[f->count++] = (invar_ledger_fact){scope, key, value};
}

static void add_number(facts *f, const char *scope, const char *key, int64_t value)
{
    INVAR_CHECK(f->n_numbers < NUMBERS);
    (void)snprintf(f->numbers[f->n_numbers], sizeof f->numbers[0], "%" PRId64, value);
    add_fact(f, scope, key, f->numbers[f->n_numbers++]);
}

/*
 * Adds names and hashes of plug-ins as facts. They are not part of the identity: their replies are
 * recorded instead.
 */
static void add_plugins(facts *f, const invar_run_flow *flow)
{
    for (int i = 0; i < INVAR_PLUGINS; i++) {
        const invar_plugin *plugin = flow->plugins.by_role[i];
        const invar_digest *hash = plugin ? invar_plugin_hash(plugin) : NULL;

        if (plugin && invar_plugin_title(plugin)[0])
            add_fact(f, "plugin-name", invar_plugin_name(plugin), invar_plugin_title(plugin));
        if (!hash)
            continue;
        invar_digest_format(f->plugin[i], hash);
        add_fact(f, INVAR_PLUGIN_SCOPE, invar_plugin_name(plugin), f->plugin[i]);
    }
}

/* Adds facts about the loaded model, which the recipe does not describe if a folder does. */
static void add_model(facts *f, const invar_run_context *s)
{
    int64_t parameters = 0; // without adapters

    for (int64_t i = 0; i < s->models.actor->n_base; i++)
        parameters += invar_param_all_elements(&s->models.actor->base[i]);
    add_fact(f, INVAR_LEDGER_MODEL_SCOPE, "family", invar_family_name(s->spec.family));
    add_number(f, INVAR_LEDGER_MODEL_SCOPE, "layers", s->spec.layers);
    add_number(f, INVAR_LEDGER_MODEL_SCOPE, "hidden-size", s->spec.hidden);
    add_number(f, INVAR_LEDGER_MODEL_SCOPE, "parameters", parameters);
}

static void gather_facts(facts *f, const invar_train_loop *loop)
{
    const invar_dataset *data = loop->models.context.data;

    f->count = f->n_numbers = 0;
    add_model(f, &loop->models.context);
    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_recipe_entry e;
        invar_recipe_entry_get(&e, loop->job.config->recipe, i);
        if (i == INVAR_KEY_SAVE && loop->storage.dirs.paths.save[0] &&
            !loop->storage.dirs.paths.default_save_dir)
            // the environment variable INVAR_SAVE may have named the folder
            e.text = loop->storage.dirs.paths.save;
        if (e.key->effect == INVAR_RECIPE_EFFECT_FREE && e.text && e.text[0])
            add_fact(f, "free", e.key->name, e.text);
    }
    if (data && invar_dataset_dropped_count(data))
        add_number(f, "data", "prompts-left-out", invar_dataset_dropped_count(data));
    if (loop->world.all) {
        add_number(f, "layout", "ranks", invar_ranks_size(loop->world.all));
        add_fact(f, "layout", "transport", loop->world.transport.text);
    }
    for (int op = 0; op < INVAR_OP_COUNT; op++)
        add_number(f, INVAR_OP_REVISIONS_SCOPE, invar_op_name((invar_op)op),
                   invar_op_revision((invar_op)op));
    add_plugins(f, &loop->flow);
    for (size_t i = 0; i < loop->storage.identity.facts.count; i++)
        f->items[f->count++] = loop->storage.identity.facts.items[i];
}

static invar_status begin_run(invar_run_storage *storage, invar_run_models *models,
                              const invar_ledger_provenance *provenance)
{
    identity id;
    invar_ledger_run run = {.name = storage->dirs.paths.name,
                            .kind =
                                storage->job->options->kind ? storage->job->options->kind : "train",
                            .circumstances = *provenance};

    INVAR_TRY(gather_identity(&id, storage, models));
    run.identity = id.pairs;
    run.n_identity = id.count;
    if (storage->fork.starting) {
        run.parent = storage->fork.uuid;
        run.fork_step = storage->fork.step;
        run.fork_chain = &storage->fork.chain;
    }
    return invar_ledger_begin(storage->recorder.ledger, &run);
}

/*
 * First difference between this identity and that of the ledger's run. A key of the recipe is
 * preferred to a hash, which may differ because of it.
 */
typedef struct first_other {
    const identity *id;
    bool met[INVAR_KEY_COUNT + EXTRA]; /* flag per pair of `id`: the ledger's run has the pair */
    bool weights;                      /* the initial weights differ */
    char key[INVAR_TEXT_QUOTE_SIZE], there[INVAR_TEXT_QUOTE_SIZE], here[INVAR_TEXT_QUOTE_SIZE];
} first_other;

static bool is_recipe_key(const char *name)
{
    return invar_recipe_find(invar_config_schema(), name) >= 0;
}

static void keep_difference(first_other *other, const char *key, const char *there,
                            const char *here)
{
    if (other->key[0] && (is_recipe_key(other->key) || !is_recipe_key(key)))
        return;
    invar_text_quote(other->key, sizeof other->key, key, strlen(key));
    invar_text_quote(other->there, sizeof other->there, there, strlen(there));
    invar_text_quote(other->here, sizeof other->here, here, strlen(here));
}

static invar_status compare_pair(void *payload, const char *const *columns,
                                 const invar_ledger_value *values, int count)
{
    first_other *other = payload;
    const char *here = "not set";

    (void)columns;
    INVAR_CHECK(count == 2);
    if (!values || values[0].type != INVAR_LEDGER_TYPE_TEXT ||
        values[1].type != INVAR_LEDGER_TYPE_TEXT)
        return INVAR_OK;
    for (size_t i = 0; i < other->id->count; i++)
        if (strcmp(other->id->pairs[i].key, values[0].data) == 0) {
            here = other->id->pairs[i].value;
            other->met[i] = true;
        }
    if (strcmp(here, values[1].data) == 0)
        return INVAR_OK;
    other->weights = other->weights || strcmp(values[0].data, INVAR_LEDGER_WEIGHTS) == 0;
    keep_difference(other, values[0].data, values[1].data, here);
    return INVAR_OK;
}

/*
 * True if a fork could have the other value. Checkpoints of debug-rollout-only have no weights, so
 * such a fork must keep the initial ones, and cannot train.
 */
static bool can_fork(const invar_run_job *job, const first_other *other, int index)
{
    return job->config->debug_rollout_only ? !other->weights
                                           : index != INVAR_KEY_DEBUG_ROLLOUT_ONLY;
}

/* Writes the advice to fork the run; "" if a fork cannot have another value of the key. */
static void advise_fork(char *out, size_t size, const invar_run_storage *storage,
                        const first_other *other)
{
    int index = invar_recipe_find(invar_config_schema(), other->key);
    char command[INVAR_FORK_COMMAND_SIZE] = "";

    // keys of the model describe weights, which a fork takes from its parent
    if (index >= 0 && strcmp(invar_config_schema()->keys[index].section, "model") != 0 &&
        can_fork(storage->job, other, index))
        invar_run_fork_command(command, storage);
    if (command[0])
        (void)snprintf(out, size, "continue it with other keys as a fork: %s; or ", command);
    else
        out[0] = '\0';
}

/*
 * Returns the key that names the files behind a hash, for messages; "" if there is not exactly one.
 */
static const char *key_behind(const char *hash)
{
    static const struct {
        const char *hash, *key;
    } known[] = {{"data hash", " (prompt-data)"},          {EVAL_DATA, " (eval-prompt-data)"},
                 {ROLLOUTS, " (load-debug-rollout-data)"}, {INVAR_TRAIN_REFERENCE, " (ref-load)"},
                 {"teacher hash", " (opd-teacher-load)"},  {"critic hash", " (critic-load)"}};

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].hash, hash) == 0)
            return known[i].key;
    return "";
}

/* Fails if the ledger's run has another identity, with the first difference and advice. */
static invar_status check_same(const invar_run_storage *storage, const invar_run_models *models,
                               invar_ledger *ledger, const invar_ledger_summary *found)
{
    const invar_ledger_argument run = {"run",
                                       {.type = INVAR_LEDGER_TYPE_INT, .integer = found->run}};
    first_other other = {.key = ""};
    invar_ledger_select_request request = {.sql =
                                               "SELECT key, value FROM identity WHERE run = :run",
                                           .arguments = &run,
                                           .n_arguments = 1,
                                           .row = compare_pair,
                                           .payload = &other};
    char advice[INVAR_FORK_COMMAND_SIZE + 64];
    identity id;

    if (invar_digest_equal(&found->identity, &storage->identity.digest))
        return INVAR_OK;
    INVAR_TRY(gather_identity(&id, storage, models));
    other.id = &id;
    INVAR_TRY(invar_ledger_select(ledger, &request));
    for (size_t i = 0; i < id.count; i++) // evaluation data, a critic, a later key
        if (!other.met[i])
            keep_difference(&other, id.pairs[i].key, "not set", id.pairs[i].value);
    if (storage->job->options->replay)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "this is not the recorded run: its %s%s was %s and is %s; give the files "
                          "that it was made with",
                          other.key, key_behind(other.key), other.there, other.here);
    advise_fork(advice, sizeof advice, storage, &other);
    return INVAR_FAIL(
        INVAR_E_STATE, 0,
        "%.1000s holds another run: its %s%s was %s and is %s; %schoose another folder "
        "with --run, or start over with --fresh",
        storage->dirs.paths.ledger, other.key, key_behind(other.key), other.there, other.here,
        advice);
}

/*
 * Fails if the files of a replay are not those of the recorded run. Called before models are made.
 */
static invar_status check_recorded(const invar_run_storage *storage, const invar_run_models *models)
{
    invar_ledger_summary summary;
    invar_ledger *ledger = NULL;
    invar_status status;

    INVAR_TRY(invar_ledger_open(&ledger, storage->dirs.paths.ledger, &(invar_ledger_options){0}));
    status = invar_ledger_find(&summary, ledger, NULL);
    if (status == INVAR_OK)
        status = check_same(storage, models, ledger, &summary);
    invar_ledger_close(ledger);
    return status;
}

invar_status invar_run_check_existing(char uuid_out[INVAR_LEDGER_UUID_SIZE],
                                      const invar_run_storage *storage,
                                      const invar_run_models *models)
{
    invar_ledger_summary summary = {.uuid = ""};
    invar_ledger *ledger = NULL;
    invar_status status = INVAR_OK;

    uuid_out[0] = '\0';
    if (!invar_path_exists(storage->dirs.paths.ledger))
        return INVAR_OK;
    if (invar_ledger_open(&ledger, storage->dirs.paths.ledger, &(invar_ledger_options){0}) ==
            INVAR_OK &&
        invar_ledger_find(&summary, ledger, NULL) == INVAR_OK)
        status = check_same(storage, models, ledger, &summary);
    else
        invar_error_clear(); // the run itself will open the ledger to write, and may repair it
    memcpy(uuid_out, summary.uuid, sizeof summary.uuid);
    invar_ledger_close(ledger);
    return status;
}

invar_status invar_run_identify(invar_run_storage *storage, invar_run_models *models)
{
    identity id;

    INVAR_TRY(find_saved_rollouts(storage, models));
    INVAR_TRY(gather_identity(&id, storage, models));
    INVAR_TRY(invar_ledger_identity(&storage->identity.digest, id.pairs, id.count));
    return storage->job->options->replay ? check_recorded(storage, models) : INVAR_OK;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Inputs that all ranks must have alike are texts "key\0value\0...". */
static void add_text(invar_json_text *to, const char *text)
{
    invar_json_text_append(to, text, strlen(text) + 1);
}

/* Appends the hash of a file. */
static invar_status add_file_hash(invar_json_text *to, const char *path)
{
    char hex[INVAR_DIGEST_HEX_SIZE];
    invar_digest digest;
    int64_t bytes;

    INVAR_TRY(invar_file_hash(&digest, &bytes, path));
    invar_digest_format(hex, &digest);
    add_text(to, hex);
    return INVAR_OK;
}

/* Appends the hashes of the program and its modules; "" for a module that it does not have. */
static invar_status add_program(invar_json_text *to)
{
    char path[INVAR_PATH_SIZE], name[64];

    add_text(to, "program");
    INVAR_TRY(add_file_hash(to, "/proc/self/exe"));
    for (size_t i = 0; invar_module_names[i] && to->status == INVAR_OK; i++) {
        bool has = invar_module_path(path, invar_module_names[i]) == INVAR_OK;

        if (!has)
            invar_error_clear();
        (void)snprintf(name, sizeof name, "module %s", invar_module_names[i]);
        add_text(to, name);
        if (has)
            INVAR_TRY(add_file_hash(to, path));
        else
            add_text(to, "");
    }
    return to->status;
}

/*
 * Appends the options and all keys of the recipe. Free keys count, since each rank decides by
 * itself when to save or to evaluate.
 */
static void add_recipe(invar_json_text *to, const invar_run_storage *storage)
{
    char until[24], step[24];

    (void)snprintf(until, sizeof until, "%" PRId64, storage->job->options->until);
    (void)snprintf(step, sizeof step, "%" PRId64, storage->job->options->fork_step);
    add_text(to, "until");
    add_text(to, until);
    add_text(to, "fork");
    add_text(to, storage->job->options->fork ? storage->job->options->fork : "");
    add_text(to, "fork-step");
    add_text(to, step);
    add_text(to, "folder of checkpoints"); // the environment may have named it
    add_text(to, storage->dirs.paths.save);
    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_recipe_entry e;
        invar_recipe_entry_get(&e, storage->job->config->recipe, i);
        add_text(to, e.key->name);
        add_text(to, e.text ? e.text : "");
    }
}

/* Appends the hashes of all files that were read. */
static void add_files(invar_json_text *to, const invar_run_context *s, const identity *id)
{
    char filled[INVAR_DIGEST_HEX_SIZE], sampled[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(filled, &s->filled);
    invar_digest_format(sampled, &s->base.sampled);
    for (size_t i = id->count - id->n_hex; i < id->count; i++) {
        add_text(to, id->pairs[i].key);
        add_text(to, id->pairs[i].value);
    }
    add_text(to, "weights as read");
    add_text(to, filled);
    add_text(to, "base that samples");
    add_text(to, sampled);
}

/* Broadcasts the text of rank `from`. The caller frees *text. */
static invar_status broadcast_text(char **text, const invar_run_world *world, int from,
                                   const invar_json_text *own)
{
    int64_t bytes = (int64_t)own->bytes;

    INVAR_TRY(invar_ranks_broadcast(world->all, "identity", from, &bytes, sizeof bytes));
    INVAR_TRY(INVAR_ALLOC(*text, (size_t)bytes + 2, "what a rank is given"));
    memset(*text, 0, (size_t)bytes + 2); // ends with two NULs, whatever the other rank sends
    if (invar_comm_rank(world->all->world) == from)
        memcpy(*text, own->data, own->bytes);
    return invar_ranks_broadcast(world->all, "identity", from, *text, (size_t)bytes);
}

/* Fails with the first key in which the differing rank's text differs from that of the majority. */
static invar_status fail_rank(const invar_run_world *world, const invar_rank_outlier *outlier,
                              const char *odd, const char *usual)
{
    char key[INVAR_TEXT_QUOTE_SIZE], its[INVAR_TEXT_QUOTE_SIZE], theirs[INVAR_TEXT_QUOTE_SIZE];

    // all texts have the same keys in the same order up to the first difference
    while (*odd && strcmp(odd, usual) == 0 &&
           strcmp(odd + strlen(odd) + 1, usual + strlen(usual) + 1) == 0)
        for (int part = 0; part < 2; part++) {
            odd += strlen(odd) + 1;
            usual += strlen(usual) + 1;
        }
    invar_text_quote(key, sizeof key, odd, strlen(odd));
    odd += strlen(odd) + 1;
    usual += strlen(usual) + 1;
    invar_text_quote(its, sizeof its, odd, strlen(odd));
    invar_text_quote(theirs, sizeof theirs, usual, strlen(usual));
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "rank %d on %s is another run than rank %d on %s: its %s is \"%s\", the "
                      "other's \"%s\"; give all ranks the same program, recipe, data and weights",
                      outlier->differing_rank,
                      invar_comm_host(world->all->world, outlier->differing_rank),
                      outlier->majority_rank,
                      invar_comm_host(world->all->world, outlier->majority_rank), key, its, theirs);
}

/* Compares the inputs over all ranks, and releases their text. */
static invar_status compare_inputs(invar_run_world *world, invar_json_text *own)
{
    char *odd = NULL, *usual = NULL;
    invar_rank_outlier outlier;
    invar_digest digest;
    invar_status status = own->status;

    invar_hash_bytes(&digest, own->data, own->bytes);
    if (status == INVAR_OK)
        status = invar_ranks_compare_digests(&outlier, world->all, "identity", &digest);
    if (status == INVAR_OK && outlier.differing_rank >= 0) {
        status = broadcast_text(&odd, world, outlier.differing_rank, own);
        if (status == INVAR_OK)
            status = broadcast_text(&usual, world, outlier.majority_rank, own);
        world->all_failed = status == INVAR_OK;
        if (status == INVAR_OK)
            status = fail_rank(world, &outlier, odd, usual);
    }
    invar_free(usual);
    invar_free(odd);
    invar_json_text_release(own);
    return status;
}

invar_status invar_run_compare_recipes(invar_run_storage *storage)
{
    invar_json_text own = {0};
    invar_status status;

    if (!storage->world->all)
        return INVAR_OK;
    status = add_program(&own);
    add_recipe(&own, storage);
    if (status == INVAR_OK)
        return compare_inputs(storage->world, &own);
    invar_json_text_release(&own);
    return status;
}

invar_status invar_run_compare_files(invar_run_storage *storage, invar_run_models *models)
{
    invar_json_text own = {0};
    identity id;

    if (!storage->world->all)
        return INVAR_OK;
    INVAR_TRY(gather_identity(&id, storage, models));
    add_files(&own, &models->context, &id);
    return compare_inputs(storage->world, &own);
}

/*
 * Fails if the ledger's run was computed with other op revisions than those of this program. A
 * replay has checked its steps already.
 */
static invar_status check_revisions(const invar_run_storage *storage,
                                    const invar_ledger_summary *found)
{
    bool known;

    if (storage->job->options->replay)
        return INVAR_OK;
    INVAR_TRY(invar_op_revisions_check(&known, storage->recorder.ledger, found, 0, INT64_MAX,
                                       ", or start anew with --fresh"));
    if (!known)
        invar_recorder_print(&storage->recorder, "%s", INVAR_OP_REVISIONS_UNKNOWN);
    return INVAR_OK;
}

invar_status invar_run_open_ledger(invar_run_storage *storage, invar_run_models *models)
{
    invar_ledger_options options = {.create = true, .writer = "invar train"};
    invar_ledger_summary summary;
    invar_status status;

    INVAR_TRY(invar_ledger_open(&storage->recorder.ledger, storage->dirs.paths.ledger, &options));
    status = invar_ledger_find(&summary, storage->recorder.ledger, NULL);
    if (status == INVAR_E_NOTFOUND) {
        invar_error_clear();
        return INVAR_OK;
    }
    INVAR_TRY(status);
    INVAR_TRY(check_same(storage, models, storage->recorder.ledger, &summary));
    INVAR_TRY(check_revisions(storage, &summary));
    memcpy(storage->recorder.uuid, summary.uuid, sizeof storage->recorder.uuid);
    storage->recorder.run = summary.run;
    storage->recorder.last_recorded_step = summary.last_step;
    return invar_kept_samples_measure(&storage->recorder.kept_bytes, storage->recorder.ledger,
                                      summary.run);
}

invar_status invar_run_fail_missing_run(const invar_run_storage *storage, int64_t step)
{
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                      "the checkpoint continues after step %" PRId64
                      ", but %.1000s has no run: give the run's folder with --run, or start a new "
                      "run from its weights with ref-load",
                      step, storage->dirs.paths.ledger);
}

invar_status invar_train_loop_begin(invar_train_loop *loop, int64_t step, const invar_digest *chain)
{
    invar_ledger_provenance provenance = {0};
    invar_ledger_summary summary;
    facts known;

    gather_facts(&known, loop);
    provenance.facts = known.items;
    provenance.n_facts = known.count;
    if (loop->storage.recorder.uuid[0]) {
        INVAR_TRY(invar_ledger_find(&summary, loop->storage.recorder.ledger,
                                    loop->storage.recorder.uuid));
        INVAR_TRY(invar_ledger_resume(loop->storage.recorder.ledger, loop->storage.recorder.uuid,
                                      step, chain, &provenance));
    } else if (step >= 0 && !loop->storage.fork.starting) {
        return invar_run_fail_missing_run(&loop->storage, step);
    } else {
        INVAR_TRY(begin_run(&loop->storage, &loop->models, &provenance));
        INVAR_TRY(invar_ledger_find(&summary, loop->storage.recorder.ledger, NULL));
    }
    memcpy(loop->storage.recorder.uuid, summary.uuid, sizeof loop->storage.recorder.uuid);
    loop->storage.recorder.run = summary.run;
    loop->storage.recorder.last_recorded_step = summary.last_step;
    return INVAR_OK;
}
