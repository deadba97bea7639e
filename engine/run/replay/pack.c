/*
 * pack.c - writes a pack: the inputs, checkpoint and ledger of one recorded step.
 *
 * If the run has no checkpoint directly before the step's rollout, the steps before it are replayed
 * once to make one, and must have the recorded bits. Members are added in a fixed order, files of a
 * folder by name, and manifest.json last, since it lists the hashes of all others.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/replay/pack.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/json/text.h"
#include "base/sort.h"
#include "base/text.h"
#include "engine/files/checkpoint/format.h"
#include "engine/files/hf/aux_files.h"
#include "engine/files/tar.h"

#include "base/invar_banned.h"

#define MAX_FILES 1024 /* largest number of files in a folder */

typedef struct pack_writer {
    const invar_replay *replay;
    invar_tar_writer *tar;
    invar_recorded_keys keys;    /* keys with their values in the pack */
    int64_t first, rollout;      /* first step of the step's rollout, and the rollout */
    char steps[INVAR_PATH_SIZE]; /* folder of the checkpoint before that rollout */
    invar_pack_result *result;
} pack_writer;

/* ---- folders --------------------------------------------------------------------------------- */

/* True for files of a Hugging Face folder that are read. */
static bool is_needed_file(const char *name, bool weights)
{
    if (name[0] == '.')
        return false;
    if (invar_text_has_suffix(name, ".safetensors") ||
        invar_text_has_suffix(name, ".safetensors.index.json"))
        return weights;
    return invar_text_has_suffix(name, ".json") || invar_text_has_suffix(name, ".jinja") ||
           invar_text_has_suffix(name, ".txt");
}

typedef struct file_names {
    char *items[MAX_FILES];
    size_t count;
} file_names;

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

static invar_status add_name(file_names *out, const char *name, const char *dir)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    if (out->count == MAX_FILES) {
        invar_path_show(shown, dir);
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: more than %d files", shown, MAX_FILES);
    }
    INVAR_TRY(INVAR_ALLOC(out->items[out->count], strlen(name) + 1, "a file's name"));
    memcpy(out->items[out->count++], name, strlen(name) + 1);
    return INVAR_OK;
}

/*
 * Lists the regular files of a folder, by name: a pack must not depend on the order of the folder.
 */
static invar_status list_files(file_names *out, const char *dir, bool all, bool weights)
{
    struct dirent *entry;
    DIR *stream = opendir(dir);
    invar_status status = INVAR_OK;

    if (!stream) {
        int code = errno;
        char shown[INVAR_PATH_SHOWN_SIZE];
        invar_path_show(shown, dir);
        return INVAR_FAIL(INVAR_E_IO, code, "%s: cannot be listed: %s", shown, strerror(code));
    }
    while (status == INVAR_OK && (entry = readdir(stream)) != NULL) {
        char path[INVAR_PATH_SIZE];
        struct stat info;
        if (entry->d_name[0] == '.' || !(all || is_needed_file(entry->d_name, weights)))
            continue;
        status = invar_path_join(path, sizeof path, dir, entry->d_name);
        if (status == INVAR_OK && stat(path, &info) == 0 && S_ISREG(info.st_mode))
            status = add_name(out, entry->d_name, dir);
    }
    (void)closedir(stream);
    return status == INVAR_OK
               ? invar_sort((const void **)(void *)out->items, out->count, compare_names)
               : status;
}

static invar_status add_files(pack_writer *p, const char *folder, const char *dir, bool all,
                              bool weights)
{
    file_names found = {.count = 0};
    char path[INVAR_PATH_SIZE], member[INVAR_PATH_SIZE];
    invar_status status = list_files(&found, dir, all, weights);

    for (size_t i = 0; i < found.count; i++) {
        if (status == INVAR_OK)
            status = invar_path_join(path, sizeof path, dir, found.items[i]);
        if (status == INVAR_OK)
            status = invar_path_join(member, sizeof member, folder, found.items[i]);
        if (status == INVAR_OK)
            status = invar_tar_add_file(p->tar, member, path);
        invar_free(found.items[i]);
    }
    return status;
}

/* Adds a folder of files, and its subfolder of further chat templates if there is one. */
static invar_status add_folder(pack_writer *p, const char *folder, const char *dir, bool all,
                               bool weights)
{
    char from[INVAR_PATH_SIZE], to[INVAR_PATH_SIZE];

    INVAR_TRY(add_files(p, folder, dir, all, weights));
    INVAR_TRY(invar_path_join(from, sizeof from, dir, INVAR_HF_TEMPLATES));
    if (!invar_path_exists(from))
        return INVAR_OK;
    INVAR_TRY(invar_path_join(to, sizeof to, folder, INVAR_HF_TEMPLATES));
    return add_files(p, to, from, all, weights);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Adds a checkpoint folder with the checkpoint of `step` only. */
static invar_status add_checkpoint(pack_writer *p, const char *folder, const char *dir,
                                   int64_t step)
{
    char from[INVAR_PATH_SIZE], to[INVAR_PATH_SIZE], member[INVAR_PATH_SIZE], text[32];
    int length = snprintf(text, sizeof text, "%" PRId64 "\n", step);

    INVAR_TRY(invar_path_join(member, sizeof member, folder, INVAR_PACK_LATEST));
    INVAR_TRY(invar_tar_add(p->tar, member, text, (size_t)length));
    INVAR_TRY(invar_checkpoint_folder(from, dir, step, ""));
    INVAR_TRY(invar_checkpoint_folder(to, folder, step, ""));
    return add_folder(p, to, from, true, true);
}

/* Adds weights: a Hugging Face folder or a checkpoint (invar_run_context_load). */
static invar_status add_weights(pack_writer *p, invar_key key, const char *folder)
{
    char latest[INVAR_PATH_SIZE];
    const char *dir = invar_recorded_keys_get(p->replay->keys, key);
    int64_t step;

    if (!dir[0])
        return INVAR_OK;
    INVAR_TRY(invar_recorded_keys_put(&p->keys, key, folder));
    INVAR_TRY(invar_path_join(latest, sizeof latest, dir, INVAR_PACK_LATEST));
    if (!invar_path_exists(latest))
        return add_folder(p, folder, dir, false, true);
    INVAR_TRY(invar_checkpoint_latest(&step, dir));
    return add_checkpoint(p, folder, dir, step);
}

/* ---- files ----------------------------------------------------------------------------------- */

static invar_status add_file(pack_writer *p, invar_key key, const char *member, const char *value)
{
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(invar_recorded_keys_file(path, p->replay->keys, key, p->rollout));
    if (!path[0])
        return INVAR_OK;
    INVAR_TRY(invar_recorded_keys_put(&p->keys, key, value));
    return invar_tar_add_file(p->tar, member, path);
}

static invar_status add_data(pack_writer *p)
{
    const char *value = invar_recorded_keys_get(p->replay->keys, INVAR_KEY_PROMPT_DATA);
    char path[INVAR_PATH_SIZE], with_slice[INVAR_PATH_SIZE];

    INVAR_TRY(invar_recorded_keys_file(path, p->replay->keys, INVAR_KEY_PROMPT_DATA, p->rollout));
    (void)snprintf(with_slice, sizeof with_slice, "%s%.64s", INVAR_PACK_DATA, value + strlen(path));
    return path[0] ? add_file(p, INVAR_KEY_PROMPT_DATA, INVAR_PACK_DATA, with_slice) : INVAR_OK;
}

/* Adds a folder that a key names, as the folder `member`. */
static invar_status add_named(pack_writer *p, invar_key key, const char *member, bool all,
                              bool weights)
{
    const char *dir = invar_recorded_keys_get(p->replay->keys, key);

    if (!dir[0])
        return INVAR_OK;
    INVAR_TRY(invar_recorded_keys_put(&p->keys, key, member));
    return add_folder(p, member, dir, all, weights);
}

static invar_status add_inputs(pack_writer *p)
{
    const invar_recorded_keys *keys = p->replay->keys;
    bool weights = !invar_recorded_keys_get(keys, INVAR_KEY_REF_LOAD)[0] || keys->reference_apart;
    char name[64];

    INVAR_TRY(add_data(p));
    INVAR_TRY(add_named(p, INVAR_KEY_HF_CHECKPOINT, INVAR_PACK_HF, false, weights));
    INVAR_TRY(add_named(p, INVAR_KEY_LORA_ADAPTER_PATH, "adapter", true, true));
    INVAR_TRY(add_weights(p, INVAR_KEY_REF_LOAD, "ref"));
    INVAR_TRY(add_weights(p, INVAR_KEY_CRITIC_LOAD, "critic"));
    INVAR_TRY(add_weights(p, INVAR_KEY_OPD_TEACHER_LOAD, "teacher"));
    INVAR_TRY(add_file(p, INVAR_KEY_CHAT_TEMPLATE_PATH, "template.jinja", "template.jinja"));
    (void)snprintf(name, sizeof name, "rollout-%" PRId64 ".jsonl", p->rollout);
    return add_file(p, INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA, name, "rollout-{rollout_id}.jsonl");
}

/* ---- the checkpoint before the step ---------------------------------------------------------- */

static invar_status make_checkpoint(pack_writer *p)
{
    char folder[INVAR_PATH_SIZE];
    invar_replay before = *p->replay;
    invar_replay_result done;

    INVAR_TRY(invar_path_join(folder, sizeof folder, p->replay->folder, "run"));
    INVAR_TRY(invar_held_folder_make(folder));
    INVAR_TRY(invar_path_join(p->steps, sizeof p->steps, p->replay->folder, "save"));
    before.folder = folder;
    before.save = p->steps;
    before.first_step = before.step = p->first - 1;
    INVAR_TRY(invar_replay_run(&done, &before));
    p->result->made = true;
    if (done.differs < 0 && done.last == p->first - 1)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                      "step %" PRId64 ", executed again for the checkpoint before step %" PRId64
                      ", has other bits than recorded: a pack would not reproduce it either",
                      done.differs, p->replay->step);
}

static invar_status find_checkpoint(pack_writer *p)
{
    int64_t found;

    p->result->checkpoint_step = p->first - 1;
    if (p->first == 0)
        return INVAR_OK;
    memcpy(p->steps, p->replay->keys->checkpoints, sizeof p->steps);
    INVAR_TRY(invar_replay_checkpoint(&found, p->replay, p->steps, p->first - 1));
    return found == p->first - 1 ? INVAR_OK : make_checkpoint(p);
}

/* ---- the archive ----------------------------------------------------------------------------- */

/* Adds the ledger of this run, with the detail of the step's rollout and of later steps. */
static invar_status add_ledger(pack_writer *p)
{
    const invar_ledger_summary *run = p->replay->run;
    invar_ledger_retention keep = {.last_steps = run->last_step - p->first + 1};
    char whole[INVAR_PATH_SIZE], part[INVAR_PATH_SIZE];
    invar_ledger *ledger = NULL;
    invar_status status;

    INVAR_TRY(invar_path_join(whole, sizeof whole, p->replay->folder, "whole.db"));
    INVAR_TRY(invar_path_join(part, sizeof part, p->replay->folder, "part.db"));
    INVAR_TRY(invar_replay_copy(p->replay, whole));
    INVAR_TRY(invar_ledger_open(&ledger, whole, &(invar_ledger_options){0}));
    status = invar_ledger_backup(ledger, part, &keep);
    invar_ledger_close(ledger);
    return status == INVAR_OK ? invar_tar_add_file(p->tar, INVAR_PACK_LEDGER, part) : status;
}

static invar_status add_manifest(pack_writer *p)
{
    const invar_tar_list *list = invar_tar_members(p->tar);
    invar_json_text text = {0};
    invar_status status;

    invar_json_text_open(&text, '{');
    invar_json_text_key(&text, "format");
    invar_json_text_string(&text, INVAR_PACK_FORMAT, strlen(INVAR_PACK_FORMAT));
    invar_json_text_key(&text, "run");
    invar_json_text_string(&text, p->replay->run->uuid, strlen(p->replay->run->uuid));
    invar_json_text_key(&text, "step");
    invar_json_text_int(&text, p->replay->step);
    invar_json_text_key(&text, "members");
    invar_json_text_open(&text, '[');
    for (int64_t i = 0; i < list->count; i++) {
        invar_json_text_open(&text, '{');
        invar_json_text_key(&text, "name");
        invar_json_text_string(&text, list->items[i].name, strlen(list->items[i].name));
        invar_json_text_key(&text, "bytes");
        invar_json_text_int(&text, list->items[i].bytes);
        invar_json_text_key(&text, "xxh128");
        invar_json_text_digest(&text, &list->items[i].hash);
        invar_json_text_close(&text, '}');
    }
    invar_json_text_close(&text, ']');
    invar_json_text_close(&text, '}');
    invar_json_text_newline(&text);
    status = text.status;
    if (status == INVAR_OK)
        status = invar_tar_add(p->tar, INVAR_PACK_MANIFEST, text.data, text.bytes);
    invar_json_text_release(&text);
    return status;
}

static invar_status add_all(pack_writer *p)
{
    const invar_tar_list *list = invar_tar_members(p->tar);
    char recipe[INVAR_PATH_SIZE];

    INVAR_TRY(add_inputs(p));
    if (p->first > 0)
        INVAR_TRY(add_checkpoint(p, INVAR_PACK_CHECKPOINT, p->steps, p->first - 1));
    INVAR_TRY(add_ledger(p));
    INVAR_TRY(invar_path_join(recipe, sizeof recipe, p->replay->folder, INVAR_PACK_RECIPE));
    INVAR_TRY(invar_recorded_keys_write(&p->keys, recipe));
    INVAR_TRY(invar_tar_add_file(p->tar, INVAR_PACK_RECIPE, recipe));
    INVAR_TRY(add_manifest(p));
    p->result->members = list->count;
    for (int64_t i = 0; i < list->count; i++)
        p->result->bytes += list->items[i].bytes;
    return invar_tar_commit(p->tar);
}

invar_status invar_pack_write(invar_pack_result *out, const invar_replay *replay, const char *path)
{
    pack_writer *p = NULL;
    invar_status status;

    *out = (invar_pack_result){.checkpoint_step = -1};
    INVAR_TRY(INVAR_ALLOC_ZEROED(p, 1, "a pack"));
    p->replay = replay;
    p->result = out;
    // first of all, so that a bad file name does not fail after hours
    status = invar_tar_writer_open(&p->tar, path);
    if (status == INVAR_OK)
        status = invar_replay_rollout(&p->first, &p->rollout, replay->keys, replay->step);
    if (status == INVAR_OK)
        status = invar_recorded_keys_check_files(replay->keys, p->rollout);
    if (status == INVAR_OK)
        status = find_checkpoint(p);
    if (status == INVAR_OK)
        status = invar_recorded_keys_copy(&p->keys, replay->keys);
    if (status == INVAR_OK)
        status = add_all(p);
    invar_tar_writer_close(p->tar);
    invar_recorded_keys_release(&p->keys);
    invar_free(p);
    return status;
}
