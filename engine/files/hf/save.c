/*
 * save.c - writes a model as a Hugging Face folder.
 *
 * Tensors are in the canonical order of parameters, the experts of a stack by number. The file that
 * readers open first (the single file or the index) is removed before anything else is written and
 * written last, so that a folder never mixes two models. Rank 0 writes; the other ranks send their
 * shards of each parameter in the same order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/json.h"
#include "engine/files/hf/hf.h"
#include "engine/files/hf/tensor_names.h"
#include "engine/files/safetensors.h"
#include "engine/model/shard/full_param.h"

#include "base/invar_banned.h"

typedef struct saved_tensor {
    char name[INVAR_HF_NAME_SIZE];
    int64_t param, expert;
    int64_t shard;
} saved_tensor;

typedef struct hf_saver {
    const invar_model *model;
    const invar_tensor *masters; /* NULL for the model's own */
    const char *dir;
    invar_safetensors_type type;
    int64_t count;
    saved_tensor *pieces;      /* (count) in canonical order */
    invar_safetensor *tensors; /* (count) in canonical order */
    int64_t shards;
    int64_t elements; /* elements of all tensors */
    invar_full_param_reader whole;
} hf_saver;

/* ---- plan ------------------------------------------------------------------------------------ */

static void list_tensors(hf_saver *s)
{
    const invar_model *m = s->model;
    int64_t next = 0;

    for (int64_t i = 0; i < m->n_params; i++) {
        const invar_param *p = &m->params[i];
        int64_t elements = p->cols ? p->rows * p->cols : p->rows;

        for (int64_t e = 0; e < p->stack; e++, next++) {
            saved_tensor *to = &s->pieces[next];
            invar_hf_name(to->name, p, e);
            to->param = i;
            to->expert = e;
            s->tensors[next] = (invar_safetensor){.name = to->name,
                                                  .type = s->type,
                                                  .rank = p->cols ? 2 : 1,
                                                  .shape = {p->rows, p->cols},
                                                  .elements = elements};
            s->elements += elements;
        }
    }
}

/* Assigns tensors to shards in order; a shard is full if the next tensor does not fit. */
static void assign_shards(hf_saver *s, int64_t max_bytes)
{
    int64_t used = 0, shard = 0;

    for (int64_t i = 0; i < s->count; i++) {
        int64_t bytes = s->tensors[i].elements * (int64_t)invar_safetensors_type_bytes(s->type);
        if (max_bytes > 0 && used > 0 && bytes > max_bytes - used) {
            shard++;
            used = 0;
        }
        s->pieces[i].shard = shard;
        used += bytes;
    }
    s->shards = shard + 1;
}

static invar_status plan_tensors(hf_saver *s, int64_t max_bytes)
{
    for (int64_t i = 0; i < s->model->n_params; i++)
        s->count += s->model->params[i].stack;
    INVAR_TRY(INVAR_ALLOC(s->pieces, (size_t)s->count, "a list"));
    INVAR_TRY(INVAR_ALLOC(s->tensors, (size_t)s->count, "a list"));
    list_tensors(s);
    assign_shards(s, max_bytes);
    return INVAR_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

static void shard_name(char out[64], const hf_saver *s, int64_t shard)
{
    if (s->shards == 1)
        snprintf(out, 64, INVAR_HF_WEIGHTS);
    else
        snprintf(out, 64, "model-%05" PRId64 "-of-%05" PRId64 ".safetensors", shard + 1, s->shards);
}

static invar_status read_tensor(const float **out, hf_saver *s, int64_t i)
{
    const saved_tensor *from = &s->pieces[i];
    const invar_full_param_source source = {
        s->model, from->param,
        s->masters ? &s->masters[from->param] : invar_param_f32(&s->model->params[from->param]),
        s->masters ? NULL : &s->model->dev};

    return invar_full_param_reader_read(out, &s->whole, &source, from->expert, 1);
}

/* Sends this rank's shards of all tensors to rank 0. */
static invar_status send_tensors(hf_saver *s)
{
    const float *none;

    for (int64_t i = 0; i < s->count; i++)
        INVAR_TRY(read_tensor(&none, s, i));
    return INVAR_OK;
}

/* Writes the tensors [first, end) to one file. */
static invar_status write_shard(hf_saver *s, const char *name, int64_t first, int64_t end)
{
    INVAR_AUTO(invar_safetensors_writer_release) invar_safetensors_writer *writer = NULL;
    static const invar_safetensors_pair metadata = {"format", "pt"};
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(path, sizeof path, s->dir, name));
    INVAR_TRY(
        invar_safetensors_create(&writer, path, s->tensors + first, end - first, &metadata, 1));
    for (int64_t i = first; i < end; i++) {
        const float *data;
        INVAR_TRY(read_tensor(&data, s, i));
        INVAR_TRY(invar_safetensors_write_f32(writer, data, s->tensors[i].elements));
    }
    return invar_safetensors_commit(writer);
}

static invar_status write_shards(hf_saver *s)
{
    int64_t first = 0;

    for (int64_t shard = 0; shard < s->shards; shard++) {
        char name[64];
        int64_t end = first;

        while (end < s->count && s->pieces[end].shard == shard)
            end++;
        shard_name(name, s, shard);
        INVAR_TRY(write_shard(s, name, first, end));
        first = end;
    }
    return INVAR_OK;
}

static invar_status build_index(json_t *index, const hf_saver *s)
{
    json_t *metadata = json_object(), *map = json_object();
    int64_t bytes = s->elements * (int64_t)invar_safetensors_type_bytes(s->type);
    // stop at the first failure: a value that could not be added was freed
    bool failed = json_object_set_new(index, "weight_map", map) != 0;

    failed = json_object_set_new(index, "metadata", metadata) != 0 || failed ||
             json_object_set_new(metadata, "total_parameters", json_integer(s->elements)) != 0 ||
             json_object_set_new(metadata, "total_size", json_integer(bytes)) != 0;
    for (int64_t i = 0; i < s->count && !failed; i++) {
        char name[64];
        shard_name(name, s, s->pieces[i].shard);
        failed = json_object_set_new(map, s->pieces[i].name, json_string(name)) != 0;
    }
    return failed ? INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for an index of weights") : INVAR_OK;
}

static invar_status write_json(const hf_saver *s, const char *name, const json_t *value)
{
    INVAR_AUTO_FREE char *text = NULL;
    char path[INVAR_PATH_SIZE];
    size_t bytes;

    INVAR_TRY(invar_path_join(path, sizeof path, s->dir, name));
    INVAR_TRY(invar_json_dump(&text, &bytes, value, JSON_INDENT(2) | JSON_SORT_KEYS, name));
    text[bytes++] = '\n'; // replaces the NUL
    return invar_file_write(path, text, bytes);
}

static invar_status write_config(const hf_saver *s, const invar_hf_files *files)
{
    INVAR_AUTO_FREE char *text = NULL;
    char path[INVAR_PATH_SIZE];
    size_t bytes;

    INVAR_TRY(invar_path_join(path, sizeof path, s->dir, "config.json"));
    if (files && files->config)
        INVAR_TRY(
            invar_hf_config(&text, &bytes, files->config, files->config_bytes,
                            s->type == INVAR_SAFETENSORS_F32 ? INVAR_DTYPE_F32 : INVAR_DTYPE_BF16));
    else
        INVAR_TRY(invar_model_spec_json(&text, &bytes, &s->model->spec,
                                        s->type == INVAR_SAFETENSORS_F32 ? "float32" : "bfloat16"));
    return invar_file_write(path, text, bytes);
}

/* Returns true for names such as "model-00001-of-00002.safetensors". */
static bool is_shard(const char *name)
{
    static const char *const between[] = {"model-", "-of-", ".safetensors"};

    for (int i = 0; i < 3; i++) {
        size_t bytes = strlen(between[i]);
        if (strncmp(name, between[i], bytes) != 0)
            return false;
        name += bytes;
        if (i < 2)
            name += strspn(name, "0123456789");
    }
    return *name == '\0';
}

static invar_status remove_shards(const hf_saver *s)
{
    char path[INVAR_PATH_SIZE];
    DIR *folder = opendir(s->dir);
    invar_status status = INVAR_OK;
    const struct dirent *entry;

    if (!folder)
        return INVAR_FAIL(INVAR_E_IO, errno, "%s: cannot be listed: %s", INVAR_SHOWN_PATH(s->dir),
                          strerror(errno));
    while (status == INVAR_OK && (entry = readdir(folder)) != NULL)
        if (is_shard(entry->d_name)) {
            status = invar_path_join(path, sizeof path, s->dir, entry->d_name);
            if (status == INVAR_OK)
                unlink(path);
        }
    closedir(folder);
    return status;
}

/* Removes weights of an earlier save, which a reader would mix with the new ones. */
static invar_status remove_old(const hf_saver *s)
{
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(path, sizeof path, s->dir, INVAR_HF_INDEX));
    unlink(path);
    INVAR_TRY(invar_path_join(path, sizeof path, s->dir, INVAR_HF_WEIGHTS));
    unlink(path);
    INVAR_TRY(remove_shards(s));
    return invar_held_folder_sync(s->dir);
}

static invar_status save_model(hf_saver *s, int64_t max_bytes, const invar_hf_files *files)
{
    INVAR_AUTO_JSON json_t *index = json_object();

    INVAR_TRY(plan_tensors(s, max_bytes));
    if (s->model->layout && invar_comm_rank(s->model->layout->world) != 0)
        return send_tensors(s);
    INVAR_TRY(invar_held_folder_make(s->dir));
    INVAR_TRY(remove_old(s));
    INVAR_TRY(write_config(s, files));
    INVAR_TRY(invar_hf_files_write(files, s->dir));
    INVAR_TRY(write_shards(s));
    if (s->shards == 1)
        return INVAR_OK;
    INVAR_TRY(build_index(index, s));
    return write_json(s, INVAR_HF_INDEX, index);
}

invar_status invar_hf_save(const invar_model *model, const invar_tensor *masters, const char *dir,
                           invar_dtype dtype, int64_t max_shard_bytes, const invar_hf_files *files)
{
    hf_saver s = {.model = model, .masters = masters, .dir = dir};
    invar_status status;

    if (dtype != INVAR_DTYPE_F32 && dtype != INVAR_DTYPE_BF16)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "weights are written as f32 or bf16, not as %s",
                          invar_dtype_name(dtype));
    s.type = dtype == INVAR_DTYPE_F32 ? INVAR_SAFETENSORS_F32 : INVAR_SAFETENSORS_BF16;
    status = save_model(&s, max_shard_bytes, files);
    invar_free(s.pieces);
    invar_free(s.tensors);
    invar_full_param_reader_release(&s.whole);
    return status;
}
