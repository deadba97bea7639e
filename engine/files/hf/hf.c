/*
 * hf.c - loads the weights of a Hugging Face folder.
 *
 * Shards are opened one after another, and the part of each tensor that this rank holds is read
 * directly into the model. Every tensor is marked when it was loaded, so duplicates and missing
 * tensors are found. The index is only trusted as far as the shards confirm it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/hf/hf.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/text.h"
#include "engine/files/hf/tensor_names.h"
#include "engine/files/safetensors.h"
#include "engine/model/graph/host_staging.h"
#include "engine/model/shard/param_loader.h"
#include "kernels-deterministic/math/bf16.h"

#include "base/invar_banned.h"

#define MAX_INDEX (256 << 20)
#define HEAD "lm_head.weight"
#define FREQUENCIES ".rotary_emb.inv_freq" /* constants in old files; recomputed from config.json */
#define COMPARED 4096                      /* elements that are compared at a time */

typedef struct loader {
    invar_model *model;
    const char *dir;
    char shown[INVAR_PATH_SHOWN_SIZE]; /* folder, for messages */
    int64_t *first; /* (n_base) index in `seen` of the parameter's first tensor */
    bool *seen;     /* (pieces) one per expert of a stack, one per other parameter */
    int64_t pieces;
    invar_host_window window; /* window to the embedding */
    invar_param_loader fill;
    /*
     * file with an lm_head.weight that must equal the embedding; empty if there is no such tensor
     */
    char head_file[INVAR_PATH_SIZE];
} loader;

static invar_status bad_tensor(const char *path, const char *name, const char *why)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: tensor '%s': %s", INVAR_SHOWN_PATH(path),
                      INVAR_QUOTED_LONG(name), why);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static invar_status expect_shape(const invar_safetensors *file, const invar_safetensor *t,
                                 const invar_param *p)
{
    int64_t shape[2] = {p->rows, p->cols};

    return invar_safetensors_expect(file, t, t->type, p->cols ? 2 : 1, shape);
}

/* Accepts a tensor that is not a parameter of this model but may exist; fails for any other. */
static invar_status accept_extra_tensor(loader *l, const char *path, const char *name)
{
    const invar_model_spec *spec = &l->model->spec;

    if (invar_text_has_suffix(name, FREQUENCIES))
        return INVAR_OK;
    if (strcmp(name, HEAD) == 0 && (spec->tied || spec->value_head)) {
        if (spec->tied)
            snprintf(l->head_file, sizeof l->head_file, "%s", path);
        return INVAR_OK;
    }
    return bad_tensor(path, name, "the model that config.json describes has none of that name");
}

/* Part of an expert, or of a parameter without experts, that this rank holds. */
typedef struct expert_part {
    int64_t row;          /* first row in the local shard */
    int64_t first, count; /* runs of the local shard; count is 0 if nothing is held */
    int64_t begin;        /* offset of the expert in the full parameter */
} expert_part;

static expert_part expert_part_of(const invar_param *p, const invar_shard_runs *runs,
                                  int64_t expert)
{
    int64_t number = expert - p->local.expert;
    expert_part out = {.begin = expert * runs->jump};

    if (number < 0 || number >= p->local.experts)
        return out;
    out.row = number * p->local.rows;
    out.first = number * runs->in_expert;
    out.count = runs->in_expert;
    return out;
}

static invar_status read_runs(float *near, const invar_safetensors *file, const invar_safetensor *t,
                              const invar_shard_runs *runs, const expert_part *own)
{
    for (int64_t k = 0; k < own->count; k++)
        INVAR_TRY(invar_safetensors_read_f32(
            near + k * runs->length, file, t,
            invar_param_shard_run_at(runs, own->first + k) - own->begin, runs->length));
    return INVAR_OK;
}

static invar_status read_expert_part(loader *l, const invar_safetensors *file,
                                     const invar_safetensor *t, const invar_param *p,
                                     int64_t expert)
{
    invar_shard_runs runs = invar_param_shard_runs_of(p, &p->local);
    expert_part own = expert_part_of(p, &runs, expert);
    float *values;

    if (own.count == 0)
        return INVAR_OK;
    INVAR_TRY(invar_param_loader_buffer(&values, &l->fill, p, own.row, p->local.rows));
    INVAR_TRY(read_runs(values, file, t, &runs, &own));
    return invar_param_loader_store(&l->fill);
}

static invar_status load_tensor(loader *l, const char *path, const invar_safetensors *file,
                                const invar_safetensor *t)
{
    int64_t expert;
    invar_param *p = invar_hf_find(&expert, l->model, t->name);
    bool *seen;

    if (!p || p->kind == INVAR_PARAM_ADAPTER) // adapters have a folder of their own
        return accept_extra_tensor(l, path, t->name);
    INVAR_TRY(expect_shape(file, t, p));
    seen = &l->seen[l->first[p - l->model->base] + expert];
    if (*seen)
        return bad_tensor(path, t->name, "it is in another shard, too");
    *seen = true;
    return read_expert_part(l, file, t, p, expert);
}

static invar_status load_tensors(loader *l, const char *path, const invar_safetensors *file)
{
    for (int64_t i = 0; i < invar_safetensors_count(file); i++)
        INVAR_TRY(load_tensor(l, path, file, invar_safetensors_at(file, i)));
    return INVAR_OK;
}

/* Opens a file of weights. If it is damaged or incomplete, the error advises to get it again. */
static invar_status open_weights(invar_safetensors **out, const char *path)
{
    return invar_error_advise(invar_safetensors_open(out, path), INVAR_E_CORRUPT,
                              "download or copy it again");
}

static invar_status load_file(loader *l)
{
    INVAR_AUTO(invar_safetensors_release) invar_safetensors *file = NULL;
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(path, sizeof path, l->dir, INVAR_HF_WEIGHTS));
    INVAR_TRY(open_weights(&file, path));
    return load_tensors(l, path, file);
}

/* ---- shards ---------------------------------------------------------------------------------- */

/* Returns true for a plain file name: no folder, not hidden. */
static bool is_shard_name(const char *name)
{
    return name && name[0] != '.' && !strchr(name, '/') &&
           invar_text_has_suffix(name, ".safetensors");
}

/* Checks that the shard has exactly the tensors that the index lists for it. */
static invar_status check_shard(const json_t *map, const char *shard, const char *path,
                                const invar_safetensors *file)
{
    const char *name;
    json_t *value;

    for (int64_t i = 0; i < invar_safetensors_count(file); i++) {
        const char *mapped;

        name = invar_safetensors_at(file, i)->name;
        mapped = json_string_value(json_object_get(map, name));
        if (!mapped || strcmp(mapped, shard) != 0)
            return bad_tensor(path, name, "the index does not say that it is in this file");
    }
    json_object_foreach((json_t *)(uintptr_t)map, name, value)
    {
        if (strcmp(json_string_value(value), shard) == 0 && !invar_safetensors_find(file, name))
            return bad_tensor(path, name, "the index says that it is in this file");
    }
    return INVAR_OK;
}

static invar_status load_shard(loader *l, const json_t *map, const char *shard)
{
    INVAR_AUTO(invar_safetensors_release) invar_safetensors *file = NULL;
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(path, sizeof path, l->dir, shard));
    INVAR_TRY(open_weights(&file, path));
    INVAR_TRY(check_shard(map, shard, path, file));
    return load_tensors(l, path, file);
}

static invar_status check_map(const json_t *map, const char *path)
{
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)map, name, value)
    {
        if (!is_shard_name(json_string_value(value)))
            return bad_tensor(path, name, "its file is no name of a safetensors file beside it");
    }
    return INVAR_OK;
}

/* Loads each shard when the map names it for the first time. */
static invar_status load_shards(loader *l, const json_t *map)
{
    INVAR_AUTO_JSON json_t *done = json_object();
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)map, name, value)
    {
        const char *shard = json_string_value(value);

        if (json_object_get(done, shard))
            continue;
        if (json_object_set_new(done, shard, json_true()) != 0)
            return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the names of shards");
        INVAR_TRY(load_shard(l, map, shard));
    }
    return INVAR_OK;
}

static invar_status load_index(loader *l)
{
    INVAR_AUTO_JSON json_t *index = NULL;
    char path[INVAR_PATH_SIZE];
    const json_t *map;

    INVAR_TRY(invar_path_join(path, sizeof path, l->dir, INVAR_HF_INDEX));
    INVAR_TRY(invar_json_read(&index, path, MAX_INDEX));
    map = json_object_get(index, "weight_map");
    if (!json_is_object(map))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: there is no object \"weight_map\"",
                          INVAR_SHOWN_PATH(path));
    INVAR_TRY(check_map(map, path));
    return load_shards(l, map);
}

/* ---- completeness ---------------------------------------------------------------------------- */

static invar_status plan_tensors(loader *l)
{
    const invar_model *m = l->model;

    INVAR_TRY(INVAR_ALLOC(l->first, (size_t)m->n_base, "a loader"));
    for (int64_t i = 0; i < m->n_base; i++) {
        l->first[i] = l->pieces;
        l->pieces += m->base[i].stack;
    }
    INVAR_TRY(INVAR_ALLOC_ZEROED(l->seen, (size_t)l->pieces, "a loader"));
    return INVAR_OK;
}

/* Zeroes the head of a critic if only the body was loaded. */
static invar_status make_value_head(loader *l)
{
    const invar_model *m = l->model;

    for (int64_t i = 0; i < m->n_base; i++) {
        const invar_param *p = &m->base[i];
        bool *seen = &l->seen[l->first[i]];
        if (!m->spec.value_head || p->kind != INVAR_PARAM_HEAD || *seen)
            continue;
        *seen = true;
        if (p->local.experts > 0)
            INVAR_TRY(invar_param_loader_zero(&l->fill, p));
    }
    return INVAR_OK;
}

static invar_status check_missing(const loader *l)
{
    char name[INVAR_HF_NAME_SIZE] = "";
    int64_t missing = 0;

    for (int64_t i = 0; i < l->model->n_base; i++) {
        for (int64_t e = 0; e < l->model->base[i].stack; e++) {
            if (l->seen[l->first[i] + e])
                continue;
            if (missing++ == 0)
                invar_hf_name(name, &l->model->base[i], e);
        }
    }
    if (missing > 0)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: tensor '%s' is missing, %lld of %lld are",
                          l->shown, name, (long long)missing, (long long)l->pieces);
    return INVAR_OK;
}

/* Returns true if the embedding has these values, or their rounded values if it is rounded. */
static bool same_values(const void *own, invar_dtype dtype, const float *values, int64_t count)
{
    for (int64_t i = 0; i < count && dtype == INVAR_DTYPE_BF16; i++)
        if (invar_bf16_from_f32(values[i]) != ((const uint16_t *)own)[i])
            return false;
    return dtype == INVAR_DTYPE_BF16 || memcmp(values, own, (size_t)count * sizeof *values) == 0;
}

/* Compares a run of the embedding, which begins at `at` in the file and at `first` in `own`. */
static invar_status compare_run(loader *l, const invar_safetensors *file, const invar_safetensor *t,
                                int64_t at, const invar_tensor *own, int64_t first, int64_t length)
{
    size_t size = (size_t)invar_dtype_bits(own->dtype) / 8;
    float got[COMPARED];

    for (int64_t i = 0; i < length; i += COMPARED) {
        int64_t count = length - i < COMPARED ? length - i : COMPARED;
        const void *expected;
        INVAR_TRY(invar_safetensors_read_f32(got, file, t, at + i, count));
        INVAR_TRY(invar_host_window_read(&expected, &l->window,
                                         (const char *)own->data + (size_t)(first + i) * size,
                                         (size_t)count * size));
        if (!same_values(expected, own->dtype, got, count))
            return bad_tensor(l->head_file, HEAD,
                              "config.json ties it to the embedding, whose bits are others");
    }
    return INVAR_OK;
}

/* Compares the rows of the embedding from `row` on, which are `own`, run by run. */
static invar_status compare_rows(loader *l, const invar_safetensors *file,
                                 const invar_safetensor *t, const invar_tensor *own, int64_t row)
{
    const invar_param *p = l->model->embedding;
    invar_shard_runs runs = invar_param_shard_runs_of(p, &p->local);
    int64_t before = row * p->local.cols, all = own->shape[0] * p->local.cols, length;

    for (int64_t i = 0; i < all; i += length) {
        int64_t into = (before + i) % runs.length, left = runs.length - into;
        length = left < all - i ? left : all - i;
        INVAR_TRY(compare_run(l, file, t,
                              invar_param_shard_run_at(&runs, (before + i) / runs.length) + into,
                              own, i, length));
    }
    return INVAR_OK;
}

/*
 * Compares lm_head.weight with the embedding. Rows whose masters are on other ranks are compared
 * rounded; the ranks that hold their masters compare the bits.
 */
static invar_status compare_head(loader *l, const invar_safetensors *file)
{
    const invar_safetensor *t = invar_safetensors_find(file, HEAD);
    const invar_param *p = l->model->embedding;
    const invar_tensor *all = invar_param_f32(p);

    if (!t)
        return bad_tensor(l->head_file, HEAD, "the file changed while it was read");
    INVAR_TRY(expect_shape(file, t, p));
    if (all)
        return compare_rows(l, file, t, all, 0);
    INVAR_TRY(compare_rows(l, file, t, &p->weight, 0));
    return compare_rows(l, file, t, &p->master, p->master_row);
}

static invar_status check_head(loader *l)
{
    INVAR_AUTO(invar_safetensors_release) invar_safetensors *file = NULL;

    if (!l->head_file[0])
        return INVAR_OK;
    INVAR_TRY(open_weights(&file, l->head_file));
    return compare_head(l, file);
}

/* ---- weights --------------------------------------------------------------------------------- */

static bool has_file(const char *dir, const char *name)
{
    char path[INVAR_PATH_SIZE];

    if (invar_path_join(path, sizeof path, dir, name) != INVAR_OK) {
        invar_error_clear();
        return false;
    }
    return invar_path_exists(path);
}

bool invar_hf_has_weights(const char *dir)
{
    return has_file(dir, INVAR_HF_WEIGHTS) || has_file(dir, INVAR_HF_INDEX);
}

/* Files of folders without supported weights, the most informative ones first. */
typedef struct lookalike {
    const char *begin, *end; /* begin and end of the file name */
    const char *remedy;
} lookalike;

#define UNREADABLE "cannot be read: load it with transformers and save it with save_pretrained"

static const lookalike lookalikes[] = {
    {"adapter_model", "",
     "is an adapter: name it with lora-adapter-path, and its base with hf-checkpoint"},
    {"", ".safetensors", "is a shard, and its index is missing: copy that, too"},
    {"", ".bin", UNREADABLE},
    {"", ".pth", UNREADABLE},
    {"", ".gguf", UNREADABLE},
};

enum { N_LOOKALIKES = sizeof lookalikes / sizeof *lookalikes };

/* Returns the index of the entry that matches a file name; N_LOOKALIKES if no entry does. */
static size_t lookalike_of(const char *name)
{
    size_t i = 0;

    while (i < N_LOOKALIKES &&
           !(strncmp(name, lookalikes[i].begin, strlen(lookalikes[i].begin)) == 0 &&
             invar_text_has_suffix(name, lookalikes[i].end)))
        i++;
    return i;
}

/*
 * Finds the most informative file, the first by name among equal ones, so that the message does not
 * depend on the order of the directory.
 */
static size_t find_lookalike(char out[INVAR_TEXT_QUOTE_SIZE], const char *dir)
{
    DIR *folder = opendir(dir);
    char found[NAME_MAX + 1] = "";
    size_t best = N_LOOKALIKES;
    const struct dirent *entry;

    while (folder && (entry = readdir(folder))) {
        size_t at = lookalike_of(entry->d_name);
        if (at < best || (at == best && at < N_LOOKALIKES && strcmp(entry->d_name, found) < 0)) {
            (void)snprintf(found, sizeof found, "%s", entry->d_name);
            best = at;
        }
    }
    if (folder)
        closedir(folder);
    invar_text_quote(out, INVAR_TEXT_QUOTE_SIZE, found, strlen(found));
    return best;
}

invar_status invar_hf_check_weights(const char *dir)
{
    char name[INVAR_TEXT_QUOTE_SIZE];
    size_t found;

    if (invar_hf_has_weights(dir))
        return INVAR_OK;
    found = find_lookalike(name, dir);
    return INVAR_FAIL(
        INVAR_E_NOTFOUND, 0,
        "%s: no weights: neither " INVAR_HF_WEIGHTS " nor " INVAR_HF_INDEX " exists%s%s%s%s",
        INVAR_SHOWN_PATH(dir), found < N_LOOKALIKES ? "; " : "", name,
        found < N_LOOKALIKES ? " " : "", found < N_LOOKALIKES ? lookalikes[found].remedy : "");
}

/* ---- folder ---------------------------------------------------------------------------------- */

/*
 * Length of an owner or model name of the Hugging Face Hub at `text`; 0 if there is no valid name.
 */
static size_t hub_name_length(const char *text)
{
    static const char usual[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

    return text[0] == '.' || text[0] == '-' ? 0 : strspn(text, usual);
}

/* Skips the address of the Hugging Face Hub; returns `text` unchanged if there is no address. */
static const char *skip_hub_address(const char *text)
{
    static const char *const hubs[] = {"hf://", "https://huggingface.co/", "http://huggingface.co/",
                                       "huggingface.co/", "https://hf.co/"};

    for (size_t i = 0; i < sizeof hubs / sizeof *hubs; i++)
        if (strncmp(text, hubs[i], strlen(hubs[i])) == 0)
            return text + strlen(hubs[i]);
    return text;
}

/*
 * Copies OWNER/NAME of a model of the Hugging Face Hub. Returns false if `path` is neither an
 * address of the Hub nor of this form with an OWNER that is not a local folder, existing or usual.
 */
static bool find_hub_name(char out[INVAR_PATH_SHOWN_SIZE], const char *path)
{
    const char *text = skip_hub_address(path);
    size_t owner = hub_name_length(text);
    size_t name = owner && text[owner] == '/' ? hub_name_length(text + owner + 1) : 0;
    const char *end = text + owner + 1 + name;

    if (name == 0 || end - text >= INVAR_PATH_SHOWN_SIZE || (*end && (text == path || *end != '/')))
        return false;
    (void)snprintf(out, INVAR_PATH_SHOWN_SIZE, "%.*s", (int)owner, text);
    if (text == path &&
        (invar_path_exists(out) || strcmp(out, "models") == 0 || strcmp(out, "runs") == 0))
        return false;
    (void)snprintf(out, INVAR_PATH_SHOWN_SIZE, "%.*s", (int)(end - text), text);
    return true;
}

invar_status invar_hf_check_folder(const char *key, const char *dir)
{
    char whole[INVAR_PATH_HINT_SIZE], name[INVAR_PATH_SHOWN_SIZE];
    char advice[2 * INVAR_PATH_SHOWN_SIZE + 160] = "";

    if (invar_path_exists(dir))
        return INVAR_OK;
    invar_path_absolute_hint(whole, strstr(dir, "://") ? "/" : dir); // a URL is not a relative path
    if (strcmp(key, "load") == 0 || strcmp(key, "run") == 0 || strcmp(key, "--fork") == 0)
        (void)snprintf(advice, sizeof advice, "; 'invar ledger ls' lists the runs below runs/");
    else if (find_hub_name(name, dir))
        (void)snprintf(advice, sizeof advice,
                       "; Invar reads local folders only: download a model of the Hugging Face Hub "
                       "with 'hf download %s --local-dir models%s' and name that folder",
                       name, strchr(name, '/'));
    else if (strstr(dir, "://") || strcmp(key, "hf-checkpoint") == 0)
        (void)snprintf(advice, sizeof advice,
                       "; Invar downloads nothing: docs/models.md says how to get a model");
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "%s%s%s: no such folder%s%s", key, key[0] ? ": " : "",
                      INVAR_SHOWN_PATH(dir), whole, advice);
}

invar_status invar_hf_check_model(const char *key, const char *dir)
{
    char name[INVAR_TEXT_QUOTE_SIZE];
    size_t found;

    INVAR_TRY(invar_hf_check_folder(key, dir));
    if (has_file(dir, "config.json"))
        return INVAR_OK;
    found = find_lookalike(name, dir);
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                      "%s: %s %s; the folder of a model holds config.json, tokenizer.json, "
                      "tokenizer_config.json and weights as .safetensors (docs/models.md)%s%s%s%s",
                      key, INVAR_SHOWN_PATH(dir),
                      has_file(dir, ".") ? "is no folder of a model: it has no config.json"
                                         : "is a file, not a folder",
                      found < N_LOOKALIKES ? "; " : "", name, found < N_LOOKALIKES ? " " : "",
                      found < N_LOOKALIKES ? lookalikes[found].remedy : "");
}

/* ---- load ------------------------------------------------------------------------------------ */

static invar_status load_weights(loader *l)
{
    INVAR_TRY(plan_tensors(l));
    INVAR_TRY(has_file(l->dir, INVAR_HF_WEIGHTS) ? load_file(l) : load_index(l));
    INVAR_TRY(make_value_head(l));
    INVAR_TRY(check_missing(l));
    return check_head(l);
}

invar_status invar_hf_load(invar_model *model, const char *dir, const invar_device *dev)
{
    invar_status status;
    loader *l;

    INVAR_TRY(invar_hf_check_weights(dir));
    INVAR_TRY(INVAR_ALLOC(l, 1, "a loader"));
    *l = (loader){.model = model, .dir = dir, .window = {.dev = &model->dev}};
    invar_param_loader_init(&l->fill, model, dev);
    invar_path_show(l->shown, dir);
    status = load_weights(l);
    invar_free(l->first);
    invar_free(l->seen);
    invar_host_window_release(&l->window);
    invar_param_loader_release(&l->fill);
    invar_free(l);
    return status;
}
