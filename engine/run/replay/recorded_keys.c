/*
 * recorded_keys.c - reads recipe keys out of a ledger or a pack, and makes a recipe of them.
 *
 * Semantic keys come from the identity of the run, free keys from the facts of the segment that
 * executed the step. Free keys of the table left_out are dropped, since a replay sets them itself
 * or does without; some of them a user may set again. Unknown keys are an error: they may change
 * bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/replay/recorded_keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json/text.h"
#include "base/text.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/files/hf/hf.h"
#include "engine/record/op_revisions.h"
#include "engine/run/run_dir/paths.h"
#include "engine/run/train_options.h"
#include "engine/sample/rollout/file/rollout_file.h"

#include "base/invar_banned.h"

/* Keys that decide where the run wrote, how it was observed, and what made it faster. */
static const struct {
    invar_key key;
    bool again; /* a replay accepts the key as a flag */
} left_out[] = {
    {INVAR_KEY_RUN, false},
    {INVAR_KEY_LEDGER, false},
    {INVAR_KEY_LOAD, true},
    {INVAR_KEY_SAVE, false},
    {INVAR_KEY_SAVE_INTERVAL, false},
    {INVAR_KEY_SAVE_INTERVAL_MINUTES, false},
    {INVAR_KEY_SAVE_HF, false},
    {INVAR_KEY_NO_SAVE_OPTIM, false},
    {INVAR_KEY_ASYNC_SAVE, false},
    {INVAR_KEY_KEEP_CHECKPOINTS, false},
    {INVAR_KEY_CKPT_STEP, false},
    {INVAR_KEY_SKIP_DAMAGED, false},
    {INVAR_KEY_SAVE_DEBUG_ROLLOUT_DATA, true},
    {INVAR_KEY_DEBUG_EXIT_AFTER_ROLLOUT, false},
    {INVAR_KEY_KEEP_SAMPLES, false},
    {INVAR_KEY_DEBUG_ROLLOUT_PRINT_EVERY, true},
    {INVAR_KEY_DEBUG_DUMP, true},
    {INVAR_KEY_DEBUG_DUMP_DIR, true},
    {INVAR_KEY_TRACE, true},
    {INVAR_KEY_PROFILE_STEP_START, true},
    {INVAR_KEY_PROFILE_STEP_END, true},
    {INVAR_KEY_MFU_PEAK_TFLOPS, true},
    {INVAR_KEY_TENSORBOARD_DIR, false},
    {INVAR_KEY_PROMETHEUS_PORT, false},
    {INVAR_KEY_PROMETHEUS_FILE, false},
    {INVAR_KEY_SINK, false},
    {INVAR_KEY_SINK_TIMEOUT, false},
    {INVAR_KEY_AUDIT, true},
    {INVAR_KEY_ROLLOUT_OVERLAP, true},
    {INVAR_KEY_AGENT_RECORD, false},
    {INVAR_KEY_ROLLOUT_RECORD, false},
    {INVAR_KEY_SPECULATIVE_ALGORITHM, true},
    {INVAR_KEY_SPECULATIVE_NUM_DRAFT_TOKENS, true},
    {INVAR_KEY_SPECULATIVE_DRAFT_MODEL_PATH, true},
    {INVAR_KEY_SPECULATIVE_NGRAM_MIN_MATCH_WINDOW_SIZE, true},
    {INVAR_KEY_SPECULATIVE_NGRAM_MAX_MATCH_WINDOW_SIZE, true},
};

static const invar_key paths[] = {INVAR_KEY_HF_CHECKPOINT,      INVAR_KEY_PROMPT_DATA,
                                  INVAR_KEY_CHAT_TEMPLATE_PATH, INVAR_KEY_REF_LOAD,
                                  INVAR_KEY_CRITIC_LOAD,        INVAR_KEY_OPD_TEACHER_LOAD,
                                  INVAR_KEY_LORA_ADAPTER_PATH,  INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA};

#define COUNT(list) (sizeof(list) / sizeof *(list))

static bool is_left_out(invar_key key)
{
    for (size_t i = 0; i < COUNT(left_out); i++)
        if (left_out[i].key == key)
            return !left_out[i].again;
    return false;
}

const invar_key *invar_recorded_keys_paths(size_t *count_out)
{
    *count_out = COUNT(paths);
    return paths;
}

/* ---- values ---------------------------------------------------------------------------------- */

void invar_recorded_keys_release(invar_recorded_keys *recorded)
{
    for (int i = 0; i < INVAR_KEY_COUNT; i++)
        invar_free(recorded->value[i]);
    memset(recorded, 0, sizeof *recorded);
}

invar_status invar_recorded_keys_put(invar_recorded_keys *recorded, invar_key key,
                                     const char *value)
{
    const char *fallback = invar_config_schema()->keys[key].default_text;
    char *copy = NULL;

    if (value && !(fallback && strcmp(fallback, value) == 0)) {
        INVAR_TRY(INVAR_ALLOC(copy, strlen(value) + 1, "the value of a key"));
        memcpy(copy, value, strlen(value) + 1);
    }
    invar_free(recorded->value[key]);
    recorded->value[key] = copy;
    return INVAR_OK;
}

invar_status invar_recorded_keys_copy(invar_recorded_keys *out, const invar_recorded_keys *from)
{
    for (int i = 0; i < INVAR_KEY_COUNT; i++)
        INVAR_TRY(invar_recorded_keys_put(out, (invar_key)i, from->value[i]));
    return INVAR_OK;
}

const char *invar_recorded_keys_get(const invar_recorded_keys *recorded, invar_key key)
{
    const char *fallback = invar_config_schema()->keys[key].default_text;

    return recorded->value[key] ? recorded->value[key] : fallback ? fallback : "";
}

static invar_status set_checkpoints(invar_recorded_keys *recorded, const char *folder)
{
    if (strlen(folder) >= sizeof recorded->checkpoints)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "load: the path has more than %zu bytes",
                          sizeof recorded->checkpoints - 1);
    memcpy(recorded->checkpoints, folder, strlen(folder) + 1);
    return INVAR_OK;
}

/* ---- out of the ledger ----------------------------------------------------------------------- */

/* Semantic keys of the run, and free keys of the segment that executed the step. */
static const char sql[] =
    "SELECT key, value, 0 FROM identity WHERE run = :run UNION ALL "
    "SELECT f.key, f.value, 1 FROM fact f JOIN timeline t ON t.run = f.run AND t.seg = f.seg "
    "WHERE f.run = :run AND t.step = :step AND f.scope = 'free'";

static invar_status read_key(void *payload, const char *const *columns,
                             const invar_ledger_value *values, int count)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];
    int key;

    (void)columns;
    if (!values)
        return INVAR_OK;
    INVAR_CHECK(count == 3);
    if (values[0].type != INVAR_LEDGER_TYPE_TEXT || values[1].type != INVAR_LEDGER_TYPE_TEXT)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "the ledger has a key that is no text: verify it");
    key = invar_recipe_find(invar_config_schema(), values[0].data);
    if (key >= 0 && values[2].integer &&
        invar_config_schema()->keys[key].effect != INVAR_RECIPE_EFFECT_FREE)
        return INVAR_OK; // a free key of an older version, which changed no bit
    if (key >= 0)
        return invar_recorded_keys_put(payload, (invar_key)key, values[1].data);
    if (strcmp(values[0].data, INVAR_TRAIN_REFERENCE) == 0)
        ((invar_recorded_keys *)payload)->reference_apart = true;
    if (strchr(values[0].data, ' ')) // a hash of named files, such as "data hash"
        return INVAR_OK;
    invar_text_quote(quoted, sizeof quoted, values[0].data, values[0].bytes);
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                      "the run has a key that this program does not know: \"%s\"; another version "
                      "of invar made it",
                      quoted);
}

/*
 * Finds the default checkpoint folder of the run: beside its ledger, which may have been moved
 * since, or else in the run folder as recorded.
 */
static invar_status find_default_folder(char out[INVAR_PATH_SIZE],
                                        const invar_recorded_keys *recorded, const char *ledger,
                                        const char *name)
{
    const char *folder = invar_recorded_keys_get(recorded, INVAR_KEY_RUN),
               *slash = strrchr(ledger, '/');
    char run[INVAR_PATH_SIZE];

    (void)snprintf(run, sizeof run, "%.*s", slash ? (int)(slash - ledger + 1) : 2,
                   slash ? ledger : "./");
    INVAR_TRY(invar_path_join(out, INVAR_PATH_SIZE, run, INVAR_RUN_PATHS_CHECKPOINTS));
    if (invar_path_exists(out))
        return INVAR_OK;
    if (!folder[0]) {
        INVAR_TRY(invar_path_join(run, sizeof run, "runs", name));
        folder = run;
    }
    return invar_path_join(out, INVAR_PATH_SIZE, folder, INVAR_RUN_PATHS_CHECKPOINTS);
}

/*
 * Drops the keys of left_out and keeps the checkpoint folder. `ledger` and `name` are those of the
 * run; NULL for a recipe without a run.
 */
static invar_status drop_left_out(invar_recorded_keys *recorded, const char *ledger,
                                  const char *name)
{
    const char *save = invar_recorded_keys_get(recorded, INVAR_KEY_SAVE);
    const char *load = invar_recorded_keys_get(recorded, INVAR_KEY_LOAD);
    char own[INVAR_PATH_SIZE];

    if (strcmp(save, "none") == 0)
        save = "";
    else if (!save[0] && ledger) {
        INVAR_TRY(find_default_folder(own, recorded, ledger, name));
        save = own;
    }
    if (load[0] && (!save[0] || !invar_path_exists(save)))
        save = load;
    INVAR_TRY(set_checkpoints(recorded, save));
    for (size_t i = 0; i < COUNT(left_out); i++)
        INVAR_TRY(invar_recorded_keys_put(recorded, left_out[i].key, NULL));
    return INVAR_OK;
}

invar_status invar_recorded_keys_read(invar_recorded_keys *out, invar_ledger *ledger,
                                      const char *path, const invar_ledger_summary *run,
                                      int64_t step)
{
    const invar_ledger_argument arguments[2] = {
        {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = run->run}},
        {"step", {.type = INVAR_LEDGER_TYPE_INT, .integer = step}},
    };
    invar_ledger_select_request request = {
        .sql = sql, .arguments = arguments, .n_arguments = 2, .row = read_key, .payload = out};
    invar_status status;

    memset(out, 0, sizeof *out);
    if (run->last_step < 0 || step < run->first_step || step > run->last_step)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                          "run %.60s has no step %" PRId64 ": its steps are %" PRId64
                          " to %" PRId64,
                          run->name, step, run->first_step, run->last_step);
    status = invar_ledger_select(ledger, &request);
    if (status == INVAR_E_UNSUPPORTED) { // the op revisions say which program knows the key
        bool known;
        invar_status other = invar_op_revisions_check(&known, ledger, run, step, step, "");
        status = other != INVAR_OK ? other : status;
    }
    if (status == INVAR_OK)
        status = drop_left_out(out, path, run->name);
    if (status == INVAR_OK)
        status = invar_recorded_keys_put(out, INVAR_KEY_NAME, run->name);
    if (status != INVAR_OK)
        invar_recorded_keys_release(out);
    return status;
}

/* ---- files ----------------------------------------------------------------------------------- */

invar_status invar_recorded_keys_load(invar_recorded_keys *out, const char *path)
{
    invar_recipe *recipe = NULL;
    invar_recipe_entry e;
    invar_status status;

    memset(out, 0, sizeof *out);
    INVAR_TRY(invar_recipe_new(&recipe, invar_config_schema()));
    status = invar_recipe_read(recipe, path);
    for (int i = 0; i < INVAR_KEY_COUNT && status == INVAR_OK; i++) {
        invar_recipe_entry_get(&e, recipe, i);
        if (e.source > INVAR_RECIPE_SOURCE_DEFAULT)
            status = invar_recorded_keys_put(out, (invar_key)i, e.text);
    }
    if (status == INVAR_OK)
        status = drop_left_out(out, NULL, NULL);
    invar_recipe_free(recipe);
    if (status != INVAR_OK)
        invar_recorded_keys_release(out);
    return status;
}

static void add_line(invar_json_text *text, const char *a, const char *b, const char *c)
{
    invar_json_text_append(text, a, strlen(a));
    invar_json_text_append(text, b, strlen(b));
    invar_json_text_append(text, c, strlen(c));
    invar_json_text_newline(text);
}

invar_status invar_recorded_keys_write(const invar_recorded_keys *recorded, const char *path)
{
    const invar_recipe_schema *schema = invar_config_schema();
    const char *section = "";
    invar_json_text text = {0};
    invar_status status;

    for (int i = 0; i < schema->count; i++) {
        const invar_recipe_key *key = &schema->keys[i];

        if (!recorded->value[i])
            continue;
        if (strcmp(section, key->section) != 0)
            add_line(&text, section[0] ? "\n[" : "[", key->section, "]");
        section = key->section;
        add_line(&text, key->name, " = ", recorded->value[i]);
    }
    status = text.status == INVAR_OK ? invar_file_write(path, text.data, text.bytes) : text.status;
    invar_json_text_release(&text);
    return status;
}

/* ---- into a recipe --------------------------------------------------------------------------- */

/* Fails if a folder given with --load has no checkpoint; "" means to start without one. */
static invar_status check_checkpoints(const char *folder)
{
    char shown[INVAR_PATH_SHOWN_SIZE], hint[INVAR_CHECKPOINT_HINT_SIZE];
    int64_t *steps = NULL, count = 0;

    if (!folder[0])
        return INVAR_OK;
    INVAR_TRY(invar_hf_check_folder("load", folder));
    INVAR_TRY(invar_checkpoint_list(&steps, &count, folder));
    invar_free(steps);
    if (count > 0)
        return INVAR_OK;
    invar_path_show(shown, folder);
    invar_checkpoint_hint(hint, folder);
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                      "load: %s has no checkpoint%s; an empty load (--load=) executes from the "
                      "start of the run",
                      shown, hint);
}

static invar_status apply_flag(invar_recorded_keys *recorded, const invar_recipe_entry *e,
                               invar_key key)
{
    if (e->key->effect != INVAR_RECIPE_EFFECT_FREE)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: a replay computes what was recorded; %s may change bits (it is "
                          "semantic)",
                          e->origin, e->key->name);
    if (key == INVAR_KEY_NAME || key == INVAR_KEY_NUM_ROLLOUT || key == INVAR_KEY_NUM_EPOCH ||
        is_left_out(key))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: a replay sets this by itself", e->origin);
    if (key == INVAR_KEY_LOAD) {
        INVAR_TRY(check_checkpoints(e->text));
        return set_checkpoints(recorded, e->text);
    }
    return invar_recorded_keys_put(recorded, key, e->text);
}

invar_status invar_recorded_keys_override(invar_recorded_keys *recorded, const invar_recipe *flags)
{
    invar_recipe_entry e;

    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_recipe_entry_get(&e, flags, i);
        if (e.source == INVAR_RECIPE_SOURCE_FLAG)
            INVAR_TRY(apply_flag(recorded, &e, (invar_key)i));
    }
    return INVAR_OK;
}

invar_status invar_recorded_keys_to_config(invar_config *out, const invar_recorded_keys *recorded)
{
    const invar_recipe_schema *schema = invar_config_schema();
    invar_recipe *recipe = NULL;
    invar_status status;

    out->recipe = NULL;
    INVAR_TRY(invar_recipe_new(&recipe, schema));
    status = INVAR_OK;
    for (int i = 0; i < schema->count && status == INVAR_OK; i++) {
        char origin[INVAR_RECIPE_MAX_NAME + 16];
        (void)snprintf(origin, sizeof origin, "the run's %s", schema->keys[i].name);
        if (recorded->value[i])
            status = invar_recipe_set(recipe, schema->keys[i].name, recorded->value[i], origin);
    }
    if (status == INVAR_OK)
        status = invar_config_check(invar_config_read(out, recipe));
    if (status != INVAR_OK) {
        invar_recipe_free(recipe);
        out->recipe = NULL;
    }
    return status;
}

/* ---- paths ----------------------------------------------------------------------------------- */

invar_status invar_recorded_keys_file(char out[INVAR_PATH_SIZE],
                                      const invar_recorded_keys *recorded, invar_key key,
                                      int64_t rollout)
{
    const char *value = invar_recorded_keys_get(recorded, key), *slice = NULL;
    size_t length = strlen(value);

    out[0] = '\0';
    if (key == INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA)
        return value[0] ? invar_rollout_file_path(out, INVAR_PATH_SIZE, value, rollout) : INVAR_OK;
    if (key == INVAR_KEY_PROMPT_DATA) {
        if (strncmp(value, "task:", 5) == 0)
            return INVAR_OK;
        for (const char *at = strstr(value, "@["); at; at = strstr(at + 1, "@["))
            slice = at;
        if (slice && value[length - 1] == ']')
            length = (size_t)(slice - value);
    }
    if (length >= INVAR_PATH_SIZE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the path has more than %d bytes",
                          invar_config_schema()->keys[key].name, INVAR_PATH_SIZE - 1);
    memcpy(out, value, length);
    out[length] = '\0';
    return INVAR_OK;
}

invar_status invar_recorded_keys_check_files(const invar_recorded_keys *recorded, int64_t rollout)
{
    for (size_t i = 0; i < COUNT(paths); i++) {
        char path[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE];
        char whole[INVAR_PATH_HINT_SIZE];
        const char *name = invar_config_schema()->keys[paths[i]].name;

        INVAR_TRY(invar_recorded_keys_file(path, recorded, paths[i], rollout));
        if (!path[0] || invar_path_exists(path))
            continue;
        invar_path_show(shown, path);
        invar_path_absolute_hint(whole, path);
        return INVAR_FAIL(
            INVAR_E_NOTFOUND, 0,
            "%s, the run's %s, does not exist%s: start from the folder that the run was "
            "started in, or give --%s",
            shown, name, whole, name);
    }
    return INVAR_OK;
}
