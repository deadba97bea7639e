/*
 * read.c - opens checkpoints, and verifies everything before it is used.
 *
 * hashes.xxh has the hash of every other file; state.json, which it covers, lists the files and
 * tensors that must exist. If the hash of a file differs, its tensors are hashed one by one, so
 * that the message names the damaged one. Tensors are verified again when they are loaded.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/files/checkpoint/format.h"

#include "base/invar_banned.h"

#define MAX_STATE ((size_t)256 << 20)
#define MAX_BLOB ((size_t)1 << 36)
#define PIECE ((size_t)64 * INVAR_TREE_LEAF_BYTES)
#define SHOWN_STEPS 8 /* largest number of steps that a message lists, the newest ones */

struct invar_checkpoint {
    char path[INVAR_PATH_SIZE];
    char shown[INVAR_PATH_SHOWN_SIZE]; /* path for messages */
    invar_checkpoint_files files;
    invar_checkpoint_index index;
    invar_safetensors *sets[INVAR_CHECKPOINT_SETS]; /* in the order of the index */
    invar_digest hash;
    int64_t bytes;
};

void invar_checkpoint_close(invar_checkpoint *c)
{
    if (!c)
        return;
    for (int64_t i = 0; i < INVAR_CHECKPOINT_SETS; i++)
        if (c->sets[i])
            invar_safetensors_close(c->sets[i]);
    invar_checkpoint_index_release(&c->index);
    invar_free(c);
}

/* ---- texts ----------------------------------------------------------------------------------- */

static invar_status fail_damaged(const invar_checkpoint *c, const char *file, const char *why)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: %s %s", c->shown, file, why);
}

/* Reads one file completely; a missing file is damage. */
static invar_status read_text(char **out, size_t *bytes_out, const invar_checkpoint *c,
                              const char *name, size_t most)
{
    char path[INVAR_PATH_SIZE];
    invar_status status;

    INVAR_TRY(invar_path_join(path, sizeof path, c->path, name));
    status = invar_file_read(out, bytes_out, path, most);
    if (status == INVAR_E_NOTFOUND)
        return fail_damaged(c, name, "is missing");
    if (status == INVAR_E_INVALID)
        return fail_damaged(c, name, "is too large, or is no file");
    return status;
}

static invar_status read_hashes(invar_checkpoint *c)
{
    invar_status status;
    size_t bytes;
    char *text;

    INVAR_TRY(read_text(&text, &bytes, c, INVAR_CHECKPOINT_HASHES, INVAR_CHECKPOINT_HASHES_SIZE));
    status = invar_checkpoint_files_parse(&c->files, c->shown, text, bytes);
    invar_hash_bytes(&c->hash, text, bytes);
    c->bytes = (int64_t)bytes;
    invar_free(text);
    if (status == INVAR_OK)
        return INVAR_OK;
    return fail_damaged(c, INVAR_CHECKPOINT_HASHES,
                        "is not a list of hashes in the order of names");
}

static invar_status read_state(invar_checkpoint *c)
{
    INVAR_AUTO_FREE char *text = NULL;
    const invar_checkpoint_file *listed =
        invar_checkpoint_files_find(&c->files, INVAR_CHECKPOINT_STATE);
    invar_digest hash;
    size_t bytes;

    if (!listed)
        return fail_damaged(c, INVAR_CHECKPOINT_HASHES, "does not list " INVAR_CHECKPOINT_STATE);
    INVAR_TRY(read_text(&text, &bytes, c, INVAR_CHECKPOINT_STATE, MAX_STATE));
    invar_hash_bytes(&hash, text, bytes);
    if (!invar_digest_equal(&hash, &listed->hash))
        return fail_damaged(c, INVAR_CHECKPOINT_STATE, "is damaged: its hash is another");
    return invar_checkpoint_index_parse(&c->index, c->shown, text, bytes);
}

/* Checks that state.json and hashes.xxh list the same files. */
static invar_status check_files(const invar_checkpoint *c)
{
    invar_checkpoint_files *needed;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(needed, 1, "a checkpoint's files"));
    status = invar_checkpoint_files_list(needed, &c->index);
    for (int64_t i = 0; status == INVAR_OK && i < needed->count; i++)
        if (!invar_checkpoint_files_find(&c->files, needed->files[i].name))
            status =
                fail_damaged(c, needed->files[i].name, "is not listed in " INVAR_CHECKPOINT_HASHES);
    for (int64_t i = 0; status == INVAR_OK && i < c->files.count; i++)
        if (!invar_checkpoint_files_find(needed, c->files.files[i].name))
            status = fail_damaged(c, c->files.files[i].name, "is not a file of this checkpoint");
    invar_free(needed);
    return status == INVAR_E_INVALID ? fail_damaged(c, INVAR_CHECKPOINT_STATE, "names a file twice")
                                     : status;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static invar_status fail_tensor(const invar_checkpoint *c, const invar_checkpoint_entry *e,
                                const char *why)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: %.48s.safetensors: tensor \"%s\" %s", c->shown,
                      e->set, INVAR_QUOTED_LONG(e->name), why);
}

/* Finds a tensor in its file; it must have the type and shape recorded in state.json. */
static invar_status locate_tensor(const invar_safetensor **out, const invar_checkpoint *c,
                                  const invar_safetensors *file, const invar_checkpoint_entry *e)
{
    const invar_safetensor *t = invar_safetensors_find(file, e->name);

    if (!t)
        return fail_tensor(c, e, "is missing");
    if (t->type != e->type || t->rank != e->rank ||
        memcmp(t->shape, e->shape, (size_t)e->rank * sizeof *e->shape) != 0)
        return fail_tensor(c, e, "has another type or shape than state.json says");
    *out = t;
    return INVAR_OK;
}

/* Computes the tree hash of a tensor in a file, in pieces of whole leaves. */
static invar_status hash_tensor(invar_digest *out, const invar_safetensors *file,
                                const invar_safetensor *t, char *piece, invar_digest *leaves)
{
    int64_t size = (int64_t)invar_safetensors_type_bytes(t->type);
    int64_t most = (int64_t)PIECE / size, count = 0, found;

    for (int64_t done = 0; done < t->elements; done += most) {
        int64_t n = t->elements - done < most ? t->elements - done : most;
        invar_tree_shard shard = {piece, 1, (size_t)(n * size), (size_t)(n * size)};
        invar_tree_input in = {&shard, 1};
        INVAR_TRY(invar_safetensors_read(piece, file, t, done, n));
        INVAR_TRY(invar_tree_leaf_count(&found, &in));
        INVAR_TRY(invar_tree_leaves(leaves + count, found, NULL, &in));
        count += found;
    }
    return invar_tree_root(out, leaves, count, (uint64_t)(t->elements * size), 1);
}

/* Returns INVAR_E_CORRUPT if the tensor does not have its recorded digest. */
static invar_status check_tensor(const invar_checkpoint *c, const invar_safetensors *file,
                                 const invar_checkpoint_entry *e)
{
    const invar_safetensor *t;
    INVAR_AUTO_FREE invar_digest *leaves = NULL;
    INVAR_AUTO_FREE char *piece = NULL;
    invar_digest got;
    size_t bytes;

    INVAR_TRY(locate_tensor(&t, c, file, e));
    bytes = (size_t)t->elements * invar_safetensors_type_bytes(t->type);
    INVAR_TRY(INVAR_ALLOC(leaves, bytes / INVAR_TREE_LEAF_BYTES + 1, "a tensor's leaves"));
    INVAR_TRY(INVAR_ALLOC(piece, PIECE, "a piece of a tensor"));
    INVAR_TRY(hash_tensor(&got, file, t, piece, leaves));
    return invar_digest_equal(&got, &e->digest) ? INVAR_OK : fail_tensor(c, e, "is damaged");
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Opens the file of a set. Any error of the reader is damage, because we wrote the file. */
static invar_status open_set(invar_checkpoint *c, int64_t i)
{
    char name[INVAR_CHECKPOINT_FILE_SIZE], path[INVAR_PATH_SIZE];
    invar_status status;

    snprintf(name, sizeof name, "%s.safetensors", c->index.sets[i].name);
    INVAR_TRY(invar_path_join(path, sizeof path, c->path, name));
    status = invar_safetensors_open(&c->sets[i], path);
    if (status == INVAR_E_UNSUPPORTED || status == INVAR_E_INVALID)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s", invar_error_last()->message);
    return status;
}

/* Names the damaged tensor of a file whose hash differs, or the file if it is the header. */
static invar_status find_damaged_tensor(invar_checkpoint *c, const char *name)
{
    for (int64_t i = 0; i < c->index.n_sets; i++) {
        const invar_checkpoint_set *set = &c->index.sets[i];
        size_t length = strlen(set->name);
        if (strncmp(name, set->name, length) != 0 || strcmp(name + length, ".safetensors") != 0)
            continue;
        INVAR_TRY(invar_error_advise(open_set(c, i), INVAR_E_CORRUPT, "the file is damaged"));
        for (int64_t k = 0; k < set->count; k++)
            INVAR_TRY(check_tensor(c, c->sets[i], &c->index.entries[set->first + k]));
    }
    return fail_damaged(c, name, "is damaged: its hash is another");
}

static invar_status check_hashes(invar_checkpoint *c)
{
    char path[INVAR_PATH_SIZE];
    invar_digest hash;
    int64_t bytes;

    for (int64_t i = 0; i < c->files.count; i++) {
        const invar_checkpoint_file *file = &c->files.files[i];
        invar_status status;
        INVAR_TRY(invar_path_join(path, sizeof path, c->path, file->name));
        status = invar_file_hash(&hash, &bytes, path);
        if (status == INVAR_E_NOTFOUND)
            return fail_damaged(c, file->name, "is missing");
        if (status == INVAR_E_INVALID)
            return fail_damaged(c, file->name, "is no regular file");
        INVAR_TRY(status);
        if (!invar_digest_equal(&hash, &file->hash))
            return find_damaged_tensor(c, file->name);
        c->bytes += bytes;
    }
    return INVAR_OK;
}

/* Opens all sets for later loads; each must have exactly the tensors of the index. */
static invar_status open_sets(invar_checkpoint *c)
{
    for (int64_t i = 0; i < c->index.n_sets; i++) {
        const invar_checkpoint_set *set = &c->index.sets[i];
        const invar_safetensor *t;
        INVAR_TRY(open_set(c, i));
        for (int64_t k = 0; k < set->count; k++)
            INVAR_TRY(locate_tensor(&t, c, c->sets[i], &c->index.entries[set->first + k]));
        if (invar_safetensors_count(c->sets[i]) != set->count)
            return fail_damaged(c, set->name, "has tensors that state.json does not know");
    }
    return INVAR_OK;
}

/* Opens and verifies the files. `step` is the expected step, INVAR_CHECKPOINT_LATEST for any. */
static invar_status load_folder(invar_checkpoint *c, int64_t step)
{
    INVAR_TRY(read_hashes(c));
    INVAR_TRY(read_state(c));
    INVAR_TRY(check_files(c));
    INVAR_TRY(check_hashes(c));
    INVAR_TRY(open_sets(c));
    if (step != INVAR_CHECKPOINT_LATEST && c->index.state.step != step)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: it holds step %" PRId64, c->shown,
                          c->index.state.step);
    return INVAR_OK;
}

/* ---- choice ---------------------------------------------------------------------------------- */

/* Finds the folder of a step; the one being replaced if there is no other. */
static invar_status find_folder(char out[INVAR_PATH_SIZE], const char *save, int64_t step)
{
    const char *shown;

    INVAR_TRY(invar_checkpoint_folder(out, save, step, ""));
    if (invar_path_exists(out))
        return INVAR_OK;
    shown = INVAR_SHOWN_PATH(out);
    INVAR_TRY(invar_checkpoint_folder(out, save, step, ".old"));
    if (invar_path_exists(out))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "%s: there is no such checkpoint", shown);
}

/* Opens the checkpoint in `folder`. */
static invar_status open_at(invar_checkpoint **out, const char *folder, int64_t step)
{
    invar_checkpoint *c;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC_ZEROED(c, 1, "a checkpoint"));
    (void)snprintf(c->path, sizeof c->path, "%s", folder);
    invar_path_show(c->shown, c->path);
    status = load_folder(c, step);
    if (status == INVAR_OK)
        *out = c;
    else
        invar_checkpoint_close(c);
    return status;
}

static invar_status open_step(invar_checkpoint **out, const char *save, int64_t step)
{
    char folder[INVAR_PATH_SIZE];

    INVAR_TRY(find_folder(folder, save, step));
    return open_at(out, folder, step);
}

bool invar_checkpoint_is_folder(const char *folder)
{
    char path[INVAR_PATH_SIZE];

    if (invar_path_join(path, sizeof path, folder, INVAR_CHECKPOINT_HASHES) == INVAR_OK)
        return invar_path_exists(path);
    invar_error_clear();
    return false;
}

/*
 * Adds the checkpoint before `folder` in SAVE, if there is one, to the error about a damaged one.
 */
static invar_status advise_earlier(const char *save, const char *folder)
{
    char path[INVAR_PATH_SIZE], earlier[INVAR_PATH_SIZE] = "", advice[INVAR_PATH_SHOWN_SIZE + 64];
    int64_t *steps = NULL, count = 0, i = 0;
    invar_error why;

    invar_error_take(&why);
    if (invar_checkpoint_list(&steps, &count, save) != INVAR_OK)
        count = 0;
    for (; i < count && invar_checkpoint_folder(path, save, steps[i], "") == INVAR_OK &&
           !invar_path_same(path, folder);
         i++)
        memcpy(earlier, path, sizeof earlier);
    invar_free(steps);
    invar_error_put(&why);
    if (i == count || !earlier[0])
        return why.status;
    (void)snprintf(advice, sizeof advice, "use an earlier checkpoint: %s",
                   INVAR_SHOWN_PATH(earlier));
    return invar_error_advise(why.status, INVAR_E_CORRUPT, advice);
}

invar_status invar_checkpoint_open_folder(invar_checkpoint **out, const char *folder)
{
    char save[INVAR_PATH_SIZE];
    invar_status status;

    *out = NULL;
    INVAR_CHECK(strlen(folder) < INVAR_PATH_SIZE);
    status = open_at(out, folder, INVAR_CHECKPOINT_LATEST);
    if (status != INVAR_E_CORRUPT || invar_path_folder(save, folder) != INVAR_OK)
        return status;
    return advise_earlier(save, folder);
}

static void report_skipped(const invar_checkpoint_open_options *choice, int64_t step)
{
    if (choice->skipped)
        choice->skipped(choice->payload, step, invar_error_last()->message);
}

/*
 * Opens the newest complete checkpoint older than `below`; returns the previous error if there is
 * no such checkpoint.
 */
static invar_status open_older(invar_checkpoint **out, const char *save, int64_t below,
                               const invar_checkpoint_open_options *choice)
{
    invar_status status = invar_error_last()->status, first = status;
    int64_t *steps, count;
    invar_error why;

    invar_error_take(&why);
    INVAR_TRY(invar_checkpoint_list(&steps, &count, save));
    for (int64_t i = count - 1; i >= 0 && status != INVAR_OK && status != INVAR_E_NOMEM; i--) {
        if (steps[i] >= below)
            continue;
        status = open_step(out, save, steps[i]);
        if (status != INVAR_OK)
            report_skipped(choice, steps[i]);
    }
    invar_free(steps);
    if (status == INVAR_OK || status == INVAR_E_NOMEM)
        return status;
    invar_error_put(&why);
    return first;
}

/* Lists the steps in SAVE except `step`. */
static invar_status list_others(char *out, size_t size, bool *older, const char *save, int64_t step)
{
    INVAR_AUTO_FREE int64_t *steps = NULL;
    int64_t count, others = 0;
    size_t used = 0;

    *older = false;
    INVAR_TRY(invar_checkpoint_list(&steps, &count, save));
    for (int64_t i = 0; i < count; i++)
        others += steps[i] != step;
    (void)snprintf(out, size, "%s", others > SHOWN_STEPS ? "..., " : "");
    for (int64_t i = 0, left = others; i < count; i++) {
        if (steps[i] == step)
            continue;
        *older = *older || steps[i] < step;
        if (left-- > SHOWN_STEPS)
            continue;
        used = strlen(out);
        (void)snprintf(out + used, size - used, "%" PRId64 "%s", steps[i], left ? ", " : "");
    }
    return INVAR_OK;
}

/* Adds to the error which steps could be opened instead, and by which settings of the user. */
static invar_status advise_others(const char *save, int64_t step,
                                  const invar_checkpoint_open_options *choice)
{
    char list[(SHOWN_STEPS + 1) * 24], folder[INVAR_PATH_SIZE];
    invar_error why;
    bool older;

    if (!choice->settings)
        return invar_checkpoint_folder(folder, save, step, "") == INVAR_OK
                   ? advise_earlier(save, folder)
                   : invar_error_last()->status;
    invar_error_take(&why);
    if (choice->skip_damaged)
        return INVAR_FAIL(why.status, why.native, "%s; no older one is whole", why.message);
    if (list_others(list, sizeof list, &older, save, step) != INVAR_OK) {
        invar_error_put(&why); // the first error is more important
        return why.status;
    }
    if (!list[0])
        return INVAR_FAIL(why.status, why.native, "%s; there is no other one", why.message);
    return INVAR_FAIL(
        why.status, why.native, "%s; choose another with ckpt-step: %s%s", why.message, list,
        older && choice->settings & INVAR_CHECKPOINT_SKIP_DAMAGED ? "; or set skip-damaged" : "");
}

static invar_status open_chosen(invar_checkpoint **out, int64_t *step, const char *save,
                                const invar_checkpoint_open_options *choice)
{
    bool latest = choice->step == INVAR_CHECKPOINT_LATEST;
    invar_status status;
    invar_error why;

    *step = choice->step;
    status = latest ? invar_checkpoint_latest(step, save) : INVAR_OK;
    if (status != INVAR_OK)
        *step = INT64_MAX;
    else
        status = open_step(out, save, *step);
    if (!latest || status != INVAR_E_NOTFOUND || *step == INT64_MAX)
        return status;
    invar_error_take(&why); // `latest` names it, so its absence is damage
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s", why.message);
}

invar_status invar_checkpoint_open(invar_checkpoint **out, const char *save,
                                   const invar_checkpoint_open_options *options)
{
    static const invar_checkpoint_open_options newest = {.step = INVAR_CHECKPOINT_LATEST};
    invar_status status;
    int64_t step;

    *out = NULL;
    options = options ? options : &newest;
    status = open_chosen(out, &step, save, options);
    if (status == INVAR_OK || status == INVAR_E_NOMEM ||
        (status == INVAR_E_NOTFOUND && step == INT64_MAX))
        return status;
    if (options->skip_damaged) {
        report_skipped(options, step == INT64_MAX ? INVAR_CHECKPOINT_LATEST : step);
        status = open_older(out, save, step, options);
    }
    return status == INVAR_OK || status == INVAR_E_NOMEM ? status
                                                         : advise_others(save, step, options);
}

/* ---- getters and tensors --------------------------------------------------------------------- */

const invar_checkpoint_state *invar_checkpoint_state_of(const invar_checkpoint *c)
{
    return &c->index.state;
}

const char *invar_checkpoint_path(const invar_checkpoint *c)
{
    return c->path;
}

void invar_checkpoint_hash(invar_digest *out, const invar_checkpoint *c)
{
    *out = c->hash;
}

static int64_t find_set(const invar_checkpoint *c, const char *set)
{
    for (int64_t i = 0; i < c->index.n_sets; i++)
        if (strcmp(c->index.sets[i].name, set) == 0)
            return i;
    return -1;
}

bool invar_checkpoint_has_set(const invar_checkpoint *c, const char *set)
{
    return find_set(c, set) >= 0;
}

bool invar_checkpoint_is_bare(const invar_checkpoint *c)
{
    return c->index.n_sets == 0;
}

static invar_checkpoint_entry *find_entry(const invar_checkpoint *c, int64_t set, const char *name)
{
    for (int64_t i = 0; set >= 0 && i < c->index.sets[set].count; i++) {
        invar_checkpoint_entry *e = &c->index.entries[c->index.sets[set].first + i];
        if (strcmp(e->name, name) == 0)
            return e;
    }
    return NULL;
}

static invar_status read_rows(invar_tensor *into, const invar_safetensors *file,
                              const invar_safetensor *t)
{
    size_t size = invar_safetensors_type_bytes(t->type);
    int64_t columns = invar_tensor_row_elements(into);
    char *at = into->data;

    if (into->row_stride == columns)
        return invar_safetensors_read(at, file, t, 0, t->elements);
    for (int64_t i = 0; i < into->shape[0]; i++, at += (size_t)into->row_stride * size)
        INVAR_TRY(invar_safetensors_read(at, file, t, i * columns, columns));
    return INVAR_OK;
}

/* Reads a tensor and verifies the digest of the bytes in memory. */
static invar_status load_and_verify(invar_tensor *into, const invar_checkpoint *c,
                                    const invar_safetensors *file, const invar_checkpoint_entry *e)
{
    size_t size = invar_safetensors_type_bytes(e->type);
    invar_tree_shard shard = {into->data, into->shape[0],
                              (size_t)invar_tensor_row_elements(into) * size,
                              (size_t)into->row_stride * size};
    const invar_safetensor *t;
    invar_digest got;

    INVAR_TRY(locate_tensor(&t, c, file, e));
    INVAR_TRY(read_rows(into, file, t));
    INVAR_TRY(invar_tree_hash(&got, NULL, &(invar_tree_input){&shard, 1}));
    return invar_digest_equal(&got, &e->digest) ? INVAR_OK : fail_tensor(c, e, "is damaged");
}

static invar_status find_tensor(invar_checkpoint_entry **out, int64_t *number, invar_checkpoint *c,
                                const char *set, const char *name)
{
    *number = find_set(c, set);
    *out = find_entry(c, *number, name);
    if (!*out)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "%s: %.40s: there is no tensor \"%.80s\"", c->shown,
                          set, name);
    return INVAR_OK;
}

invar_status invar_checkpoint_skip_tensor(invar_checkpoint *c, const char *set, const char *name)
{
    invar_checkpoint_entry *e;
    int64_t number;

    INVAR_TRY(find_tensor(&e, &number, c, set, name));
    e->loaded = true;
    return INVAR_OK;
}

invar_status invar_checkpoint_load(invar_tensor *into, invar_checkpoint *c, const char *set,
                                   const char *name)
{
    invar_checkpoint_entry *e;
    invar_safetensors_type type;
    int64_t number;

    INVAR_TRY(find_tensor(&e, &number, c, set, name));
    INVAR_TRY(invar_checkpoint_type(&type, name, into->dtype));
    if (e->type != type || e->rank != into->rank ||
        memcmp(e->shape, into->shape, (size_t)e->rank * sizeof *e->shape) != 0)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "%s: %.40s: tensor \"%.80s\" has another type or shape than the model's",
                          c->shown, set, name);
    INVAR_TRY(load_and_verify(into, c, c->sets[number], e));
    e->loaded = true;
    return INVAR_OK;
}

invar_status invar_checkpoint_check_all_loaded(const invar_checkpoint *c, const char *set)
{
    int64_t number = find_set(c, set);

    for (int64_t i = 0; number >= 0 && i < c->index.sets[number].count; i++) {
        const invar_checkpoint_entry *e = &c->index.entries[c->index.sets[number].first + i];
        if (!e->loaded)
            return INVAR_FAIL(INVAR_E_STATE, 0,
                              "%s: %.40s: the model has no tensor \"%.80s\"; it is of another spec",
                              c->shown, set, e->name);
    }
    return INVAR_OK;
}

invar_status invar_checkpoint_read_blob(char **out, size_t *bytes_out, const invar_checkpoint *c,
                                        const char *blob)
{
    const invar_checkpoint_file *file = invar_checkpoint_files_find(&c->files, blob);
    invar_digest hash;

    *out = NULL;
    *bytes_out = 0;
    if (!file)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "%s: there is no %.100s", c->shown, blob);
    INVAR_TRY(read_text(out, bytes_out, c, blob, MAX_BLOB));
    invar_hash_bytes(&hash, *out, *bytes_out);
    if (invar_digest_equal(&hash, &file->hash))
        return INVAR_OK;
    invar_free(*out);
    *out = NULL;
    *bytes_out = 0;
    return fail_damaged(c, blob, "is damaged: its hash is another");
}

/* ---- the ledger ------------------------------------------------------------------------------ */

/* Pending intent with this step and hash, and the path that it announced. */
typedef struct pending_intent {
    int64_t step;
    char hash[INVAR_DIGEST_HEX_SIZE];
    char path[INVAR_PATH_SIZE]; /* empty if there is no such intent */
} pending_intent;

/* Reads a row with the columns step, seg, path, bytes, hash. */
static invar_status read_pending(void *payload, const char *const *columns,
                                 const invar_ledger_value *values, int count)
{
    pending_intent *p = payload;

    (void)columns;
    if (!values)
        return INVAR_OK;
    INVAR_CHECK(count == 5);
    if (values[0].integer == p->step && values[2].type == INVAR_LEDGER_TYPE_TEXT &&
        values[4].type == INVAR_LEDGER_TYPE_TEXT && strcmp(values[4].data, p->hash) == 0 &&
        values[2].bytes < sizeof p->path)
        memcpy(p->path, values[2].data, values[2].bytes + 1);
    return INVAR_OK;
}

invar_status invar_checkpoint_finish_pending(const invar_checkpoint *c, invar_ledger *ledger)
{
    const invar_checkpoint_state *s = &c->index.state;
    pending_intent p = {.step = s->step};
    invar_ledger_summary run;
    invar_status status;
    invar_ledger_query query;
    invar_ledger_argument argument = {.name = "run"};

    invar_digest_format(p.hash, &c->hash);
    status = invar_ledger_find(&run, ledger, s->uuid[0] ? s->uuid : NULL);
    if (status == INVAR_E_NOTFOUND) { // the ledger began after the checkpoint
        invar_error_clear();
        return INVAR_OK;
    }
    INVAR_TRY(status);
    INVAR_TRY(invar_ledger_query_find(&query, "checkpoint-pending"));
    argument.value = (invar_ledger_value){.type = INVAR_LEDGER_TYPE_INT, .integer = run.run};
    INVAR_TRY(invar_ledger_select(ledger, &(invar_ledger_select_request){.sql = query.sql,
                                                                         .arguments = &argument,
                                                                         .n_arguments = 1,
                                                                         .row = read_pending,
                                                                         .payload = &p}));
    if (!p.path[0])
        return INVAR_OK;
    return invar_ledger_checkpoint_complete(
        ledger, &(invar_ledger_checkpoint){s->step, p.path, c->bytes, c->hash, s->chain});
}
