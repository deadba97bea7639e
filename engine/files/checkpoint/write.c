/*
 * write.c - writes a checkpoint in an order that survives a crash at any moment.
 *
 *   1  all files in iter_X.tmp, each synced, then the folder
 *   2  the ledger's intent: all steps that it contains are durable
 *   3  the mark iter_X.by-time is made or removed; iter_X, if it exists, is renamed to iter_X.old;
 *      iter_X.tmp is renamed to iter_X; sync
 *   4  the ledger's completion
 *   5  `latest` names it
 *   6  iter_X.old and surplus checkpoints are removed
 *
 * Until 5 a reader opens the previous checkpoint, unless that is the one replaced in 3; then it
 * finds either the old or the new content.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/files/checkpoint/write_internal.h"
#include "engine/model/tensor_hasher.h"

#include "base/invar_banned.h"

typedef invar_checkpoint_write_state write_job;

/* ---- content --------------------------------------------------------------------------------- */

static invar_status describe_tensor(invar_checkpoint_entry *out,
                                    const invar_checkpoint_tensor *from)
{
    const invar_tensor *t = &from->tensor;

    memset(out, 0, sizeof *out);
    out->set = from->set;
    out->name = from->name;
    out->rank = t->rank;
    memcpy(out->shape, t->shape, sizeof out->shape);
    return invar_checkpoint_type(&out->type, from->name, t->dtype);
}

static invar_status hash_host_tensor(invar_digest *out, const invar_tensor *t, invar_pool *pool)
{
    size_t size = (size_t)invar_dtype_bits(t->dtype) / 8;
    invar_tree_shard shard = {t->data, t->shape[0], (size_t)invar_tensor_row_elements(t) * size,
                              (size_t)t->row_stride * size};

    return invar_tree_hash(out, pool, &(invar_tree_input){&shard, 1});
}

/*
 * Hashes tensors in host memory with the pool; the op hash.tree gives the same digest on a device.
 */
static invar_status hash_host_tensors(write_job *m)
{
    const invar_checkpoint_content *c = m->content;
    invar_checkpoint_entry *entries = m->index.entries;

    for (int64_t i = 0; i < c->n_tensors; i++)
        if (!entries[i].hashed && !c->fetch)
            INVAR_TRY(hash_host_tensor(&entries[i].digest, &c->tensors[i].tensor, m->options.pool));
    return INVAR_OK;
}

static bool is_on_device(const invar_checkpoint_tensor *t)
{
    return t->dev && invar_device_is_local(t->dev);
}

/*
 * Returns the device of tensors in device memory, which all have the same one; NULL if all tensors
 * are in host memory.
 */
static const invar_device *find_device(const invar_checkpoint_content *c)
{
    for (int64_t i = 0; i < c->n_tensors; i++)
        if (is_on_device(&c->tensors[i]))
            return c->tensors[i].dev;
    return NULL;
}

static invar_status compute_device_digests(invar_digest *out, const invar_checkpoint_content *c,
                                           const invar_device *dev)
{
    INVAR_AUTO(invar_tensor_hasher_release) invar_tensor_hasher hasher;

    invar_tensor_hasher_init(&hasher, dev);
    for (int64_t i = 0; i < c->n_tensors; i++)
        if (is_on_device(&c->tensors[i]))
            INVAR_TRY(invar_tensor_hasher_add(&hasher, &c->tensors[i].tensor, 1));
    return invar_tensor_hasher_read(out, &hasher);
}

static invar_status hash_device_tensors(write_job *m)
{
    const invar_checkpoint_content *c = m->content;
    const invar_device *dev = find_device(c);
    invar_checkpoint_entry *entries = m->index.entries;
    INVAR_AUTO_FREE invar_digest *digests = NULL;
    const invar_digest *next;

    if (!dev)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(digests, (size_t)c->n_tensors, "digests of a checkpoint's tensors"));
    INVAR_TRY(compute_device_digests(digests, c, dev));
    next = digests;
    for (int64_t i = 0; i < c->n_tensors; i++) {
        entries[i].hashed = is_on_device(&c->tensors[i]);
        if (entries[i].hashed)
            entries[i].digest = *next++;
    }
    return INVAR_OK;
}

static invar_status list_content(write_job *m)
{
    const invar_checkpoint_content *c = m->content;
    invar_checkpoint_index *index = &m->index;

    if (c->n_blobs < 0 || c->n_blobs > INVAR_CHECKPOINT_BLOBS || c->n_tensors < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "checkpoint: %lld blobs and %lld tensors; 0 to %d, 0 "
                          "or more",
                          (long long)c->n_blobs, (long long)c->n_tensors, INVAR_CHECKPOINT_BLOBS);
    index->state = *c->state;
    INVAR_TRY(INVAR_ALLOC(index->entries, (size_t)c->n_tensors, "a checkpoint's tensors"));
    for (int64_t i = 0; i < c->n_tensors; i++)
        INVAR_TRY(describe_tensor(&index->entries[i], &c->tensors[i]));
    index->n_entries = c->n_tensors;
    for (int64_t i = 0; i < c->n_blobs; i++)
        index->blobs[i] = c->blobs[i].name;
    index->n_blobs = c->n_blobs;
    INVAR_TRY(invar_checkpoint_index_check(index, "checkpoint"));
    return invar_checkpoint_files_list(&m->files, index);
}

static invar_status name_folders(write_job *m, const char *save)
{
    int64_t step = m->content->state->step;

    if (snprintf(m->save, sizeof m->save, "%s", save) >= (int)sizeof m->save)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the path \"%.1000s...\" is too long", save);
    INVAR_TRY(invar_checkpoint_folder(m->path, m->save, step, ""));
    INVAR_TRY(invar_checkpoint_folder(m->partial, m->save, step, ".tmp"));
    return invar_checkpoint_folder(m->old, m->save, step, ".old");
}

invar_status invar_checkpoint_prepare(write_job *m, const char *save,
                                      const invar_checkpoint_content *content,
                                      const invar_checkpoint_options *options)
{
    memset(m, 0, sizeof *m);
    m->content = content;
    if (options)
        m->options = *options;
    INVAR_TRY(list_content(m));
    INVAR_TRY(name_folders(m, save));
    return hash_device_tensors(m);
}

void invar_checkpoint_write_state_release(write_job *m)
{
    invar_checkpoint_index_release(&m->index);
    invar_host_window_release(&m->window);
}

/* ---- files ----------------------------------------------------------------------------------- */

static invar_status write_tensor(invar_safetensors_writer *writer,
                                 const invar_checkpoint_tensor *from, invar_host_window *window)
{
    size_t size = (size_t)invar_dtype_bits(from->tensor.dtype) / 8;
    int64_t columns = invar_tensor_row_elements(&from->tensor);
    invar_tensor t;
    const char *at;

    window->dev = from->dev;
    INVAR_TRY(invar_host_window_tensor(&t, window, &from->tensor));
    at = t.data;
    if (t.row_stride == columns || t.shape[0] <= 1)
        return invar_safetensors_write(writer, at, t.shape[0] * columns);
    for (int64_t i = 0; i < t.shape[0]; i++, at += (size_t)t.row_stride * size)
        INVAR_TRY(invar_safetensors_write(writer, at, columns));
    return INVAR_OK;
}

/* Writes tensor `number`; fetched values are hashed here. */
static invar_status write_next_tensor(invar_safetensors_writer *writer, write_job *m,
                                      int64_t number)
{
    const invar_checkpoint_content *c = m->content;
    invar_checkpoint_tensor from = c->tensors[number];
    const void *came;

    if (c->fetch) {
        INVAR_TRY(c->fetch(&came, c->payload, number));
        from.tensor.data = (void *)(uintptr_t)came;
        from.dev = NULL;
        INVAR_TRY(
            hash_host_tensor(&m->index.entries[number].digest, &from.tensor, m->options.pool));
    }
    return write_tensor(writer, &from, &m->window);
}

static const invar_safetensors_pair metadata = {"format", "pt"};

static invar_status write_set(write_job *m, const invar_checkpoint_set *set,
                              const invar_safetensor *tensors)
{
    INVAR_AUTO(invar_safetensors_writer_release) invar_safetensors_writer *writer = NULL;
    char name[INVAR_CHECKPOINT_FILE_SIZE], path[INVAR_PATH_SIZE];

    snprintf(name, sizeof name, "%s.safetensors", set->name);
    INVAR_TRY(invar_path_join(path, sizeof path, m->partial, name));
    INVAR_TRY(invar_safetensors_create(&writer, path, tensors, set->count, &metadata, 1));
    for (int64_t i = 0; i < set->count; i++)
        INVAR_TRY(write_next_tensor(writer, m, set->first + i));
    return invar_safetensors_commit(writer);
}

/* Adds the bytes of the set's file. */
static invar_status measure_set(write_job *m, const invar_checkpoint_set *set,
                                const invar_safetensor *tensors)
{
    int64_t bytes;

    INVAR_TRY(invar_safetensors_measure(&bytes, tensors, set->count, &metadata, 1));
    m->bytes += bytes;
    return INVAR_OK;
}

/* Describes the tensors of a set and calls `how` with them. */
static invar_status call_for_set(write_job *m, const invar_checkpoint_set *set,
                                 invar_status (*how)(write_job *m, const invar_checkpoint_set *set,
                                                     const invar_safetensor *tensors))
{
    INVAR_AUTO_FREE invar_safetensor *tensors = NULL;

    INVAR_TRY(INVAR_ALLOC(tensors, (size_t)set->count, "a checkpoint's tensors"));
    for (int64_t i = 0; i < set->count; i++) {
        const invar_checkpoint_entry *e = &m->index.entries[set->first + i];
        tensors[i] = (invar_safetensor){.name = e->name, .type = e->type, .rank = e->rank};
        memcpy(tensors[i].shape, e->shape, sizeof e->shape);
    }
    return how(m, set, tensors);
}

static invar_status write_file(const write_job *m, const char *name, const void *data, size_t bytes)
{
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(path, sizeof path, m->partial, name));
    return invar_file_write(path, data, bytes);
}

/* Writes a blob; creates its folder first, if it has one. */
static invar_status write_blob(const write_job *m, const invar_checkpoint_blob *blob)
{
    char folder[INVAR_PATH_SIZE], *slash;

    INVAR_TRY(invar_path_join(folder, sizeof folder, m->partial, blob->name));
    slash = strrchr(folder, '/');
    *slash = '\0';
    if (strcmp(folder, m->partial) != 0)
        INVAR_TRY(invar_held_folder_make_one(folder));
    return write_file(m, blob->name, blob->data, blob->bytes);
}

static invar_status write_state(const write_job *m)
{
    INVAR_AUTO_FREE char *text = NULL;
    size_t bytes = 0;

    INVAR_TRY(invar_checkpoint_index_text(&text, &bytes, &m->index));
    return write_file(m, INVAR_CHECKPOINT_STATE, text, bytes);
}

/* Hashes the files as they can be read back, not the bytes that were written. */
static invar_status write_hashes(write_job *m)
{
    char path[INVAR_PATH_SIZE];
    int64_t bytes;
    size_t length;

    for (int64_t i = 0; i < m->files.count; i++) {
        invar_checkpoint_file *file = &m->files.files[i];
        INVAR_TRY(invar_path_join(path, sizeof path, m->partial, file->name));
        INVAR_TRY(invar_file_hash(&file->hash, &bytes, path));
        m->bytes += bytes;
    }
    length = invar_checkpoint_files_text(m->text, &m->files);
    m->bytes += (int64_t)length;
    invar_hash_bytes(&m->hash, m->text, length);
    return write_file(m, INVAR_CHECKPOINT_HASHES, m->text, length);
}

static invar_status write_files(write_job *m)
{
    INVAR_TRY(invar_held_folder_make_one(m->partial));
    for (int64_t i = 0; i < m->index.n_sets; i++)
        INVAR_TRY(call_for_set(m, &m->index.sets[i], write_set));
    for (int64_t i = 0; i < m->content->n_blobs; i++)
        INVAR_TRY(write_blob(m, &m->content->blobs[i]));
    INVAR_TRY(write_state(m));
    return write_hashes(m);
}

/* ---- names ----------------------------------------------------------------------------------- */

static invar_status rename_path(const char *from, const char *to)
{
    int code;

    if (rename(from, to) == 0)
        return INVAR_OK;
    code = errno;
    return INVAR_FAIL(INVAR_E_IO, code, "%s: cannot be renamed: %s", INVAR_SHOWN_PATH(from),
                      strerror(code));
}

static invar_status rename_into_place(const write_job *m)
{
    bool replaces = invar_path_exists(m->path);
    int64_t step = m->index.state.step;
    invar_status status;

    INVAR_TRY(invar_checkpoint_mark(m->save, step,
                                    m->options.by_time &&
                                        (!replaces || invar_checkpoint_is_marked(m->save, step))));
    if (replaces)
        INVAR_TRY(rename_path(m->path, m->old));
    status = rename_path(m->partial, m->path);
    if (status != INVAR_OK && replaces)
        // if this fails, too, a reader finds the checkpoint under its old name
        rename(m->old, m->path);
    INVAR_TRY(status);
    return invar_held_folder_sync(m->save);
}

/* ---- phases ---------------------------------------------------------------------------------- */

static invar_status notify_ledger(const write_job *m,
                                  invar_status (*how)(invar_ledger *ledger,
                                                      const invar_ledger_checkpoint *))
{
    invar_ledger_checkpoint made = {.step = m->index.state.step,
                                    .path = m->path,
                                    .bytes = m->bytes,
                                    .hash = m->hash,
                                    .chain = m->index.state.chain};

    return m->options.ledger ? how(m->options.ledger, &made) : INVAR_OK;
}

/* Removes iter_X.tmp after a failure; returns the status with its error record. */
static invar_status clean_up(const write_job *m, invar_status status)
{
    invar_error why;

    if (status == INVAR_OK)
        return INVAR_OK;
    invar_error_take(&why);
    if (invar_held_folder_remove(m->partial) != INVAR_OK)
        invar_error_clear(); // the next writer will try again
    invar_error_put(&why);
    return status;
}

invar_status invar_checkpoint_make_files(write_job *m)
{
    INVAR_TRY(hash_host_tensors(m));
    if (!m->options.save_exists)
        INVAR_TRY(invar_held_folder_make(m->save));
    INVAR_TRY(invar_checkpoint_remove_leftovers(m->save));
    return clean_up(m, write_files(m));
}

static invar_status publish_folder(write_job *m)
{
    INVAR_TRY(notify_ledger(m, invar_ledger_checkpoint_intent));
    return rename_into_place(m);
}

invar_status invar_checkpoint_publish(write_job *m, const char *save)
{
    INVAR_TRY(name_folders(m, save)); // the folder may have been moved since the files were written
    INVAR_TRY(clean_up(m, publish_folder(m)));
    INVAR_TRY(notify_ledger(m, invar_ledger_checkpoint_complete));
    INVAR_TRY(invar_checkpoint_latest_write(m->save, m->index.state.step));
    // the checkpoint is the latest now: what cannot be removed is left to the next writer
    if (invar_held_folder_remove(m->old) != INVAR_OK ||
        invar_checkpoint_prune(m->save, m->index.state.step, m->options.keep,
                               m->options.is_last ? 0 : INVAR_CHECKPOINT_KEPT_BY_TIME) != INVAR_OK)
        invar_error_clear();
    return INVAR_OK;
}

static void free_job(write_job **m)
{
    if (*m)
        invar_checkpoint_write_state_release(*m);
    invar_free(*m);
}

invar_status invar_checkpoint_write(invar_digest *hash_out, const char *save,
                                    const invar_checkpoint_content *content,
                                    const invar_checkpoint_options *options)
{
    INVAR_AUTO(free_job) write_job *m = NULL;

    INVAR_TRY(INVAR_ALLOC_ZEROED(m, 1, "a checkpoint"));
    INVAR_TRY(invar_checkpoint_prepare(m, save, content, options));
    INVAR_TRY(invar_checkpoint_make_files(m));
    INVAR_TRY(invar_checkpoint_publish(m, save));
    if (hash_out)
        *hash_out = m->hash;
    return INVAR_OK;
}

static invar_status measure_content(write_job *m)
{
    INVAR_AUTO_FREE char *text = NULL;
    size_t bytes = 0;

    INVAR_TRY(list_content(m));
    for (int64_t i = 0; i < m->index.n_sets; i++)
        INVAR_TRY(call_for_set(m, &m->index.sets[i], measure_set));
    for (int64_t i = 0; i < m->content->n_blobs; i++)
        m->bytes += (int64_t)m->content->blobs[i].bytes;
    INVAR_TRY(invar_checkpoint_index_text(&text, &bytes, &m->index));
    m->bytes += (int64_t)(bytes + invar_checkpoint_files_text(m->text, &m->files));
    return INVAR_OK;
}

invar_status invar_checkpoint_measure(int64_t *bytes_out, const invar_checkpoint_content *content)
{
    INVAR_AUTO(free_job) write_job *m = NULL;

    INVAR_TRY(INVAR_ALLOC_ZEROED(m, 1, "a checkpoint"));
    m->content = content;
    INVAR_TRY(measure_content(m));
    *bytes_out = m->bytes;
    return INVAR_OK;
}
