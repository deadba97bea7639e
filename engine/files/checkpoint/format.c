/*
 * format.c - writes and parses state.json and hashes.xxh of a checkpoint.
 *
 * The same checks apply to writing and reading, so every checkpoint that was written can be read.
 * Floats are stored as the hexadecimal digits of their bits, so that they are restored exactly. A
 * file that violates the format is INVAR_E_CORRUPT when it is read.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/checkpoint/format.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sort.h"
#include "base/text.h"

#include "base/invar_banned.h"

#define KIND "invar-checkpoint"
#define MAX_ADAPTER_RANK 4096

static const invar_safetensors_type types[] = {INVAR_SAFETENSORS_F32, INVAR_SAFETENSORS_BF16,
                                               INVAR_SAFETENSORS_I32, INVAR_SAFETENSORS_I64};
enum { TYPES = sizeof types / sizeof types[0] };

invar_status invar_checkpoint_type(invar_safetensors_type *out, const char *name, invar_dtype dtype)
{
    static const invar_dtype dtypes[TYPES] = {INVAR_DTYPE_F32, INVAR_DTYPE_BF16, INVAR_DTYPE_I32,
                                              INVAR_DTYPE_I64};

    for (int i = 0; i < TYPES; i++)
        if (dtypes[i] == dtype) {
            *out = types[i];
            return INVAR_OK;
        }
    return INVAR_FAIL(
        INVAR_E_UNSUPPORTED, 0,
        "checkpoint: tensor \"%.100s\" is of type %s; f32, bf16, i32 and i64 are kept", name,
        invar_dtype_name(dtype));
}

/* ---- checks ---------------------------------------------------------------------------------- */

static invar_status fail_value(const char *where, const char *what, const char *name,
                               const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: %s \"%s\" %s", where, what, INVAR_QUOTED_LONG(name),
                      why);
}

/* Checks a file name, or one component of it, of at most `most` bytes. */
static bool is_plain_name(const char *name, size_t most)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                  "0123456789._-";
    size_t length = strlen(name);

    return length > 0 && length <= most && name[0] != '.' && strspn(name, allowed) == length;
}

/* Checks a name of the form FILE or FOLDER/FILE. */
static bool is_file_name(const char *name, size_t most)
{
    const char *slash = strchr(name, '/');
    char folder[INVAR_CHECKPOINT_FILE_SIZE] = "";

    if (!slash)
        return is_plain_name(name, most);
    if ((size_t)(slash - name) < sizeof folder)
        memcpy(folder, name, (size_t)(slash - name));
    return strlen(name) <= most && is_plain_name(folder, most) && is_plain_name(slash + 1, most);
}

bool invar_checkpoint_blob_name(const char *name)
{
    return is_file_name(name, INVAR_CHECKPOINT_NAME_BYTES) &&
           strcmp(name, INVAR_CHECKPOINT_HASHES) != 0;
}

/* Returns true if the text is printable and has at most `most` bytes. */
static bool is_text(const char *text, size_t most)
{
    size_t left = strlen(text), step;

    if (left > most)
        return false;
    for (; left > 0; text += step, left -= step) {
        step = invar_text_char(text, left);
        if (step == 0)
            return false;
    }
    return true;
}

static invar_status check_state(const invar_checkpoint_state *s, const char *where)
{
    const int64_t numbers[] = {s->step,   s->rollout,     s->weights,     s->samples,
                               s->groups, s->actor.steps, s->critic.steps};
    static const char *const names[] = {"step",   "rollout",     "weights",     "samples",
                                        "groups", "actor.steps", "critic.steps"};

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i] < 0)
            return fail_value(where, "the number", names[i], "is negative");
    if (s->uuid[0] && (strlen(s->uuid) != 32 || strspn(s->uuid, "0123456789abcdef") != 32))
        return fail_value(where, "the uuid", s->uuid, "is not 32 hexadecimal digits");
    if (!is_text(s->name, INVAR_LEDGER_NAME_BYTES))
        return fail_value(where, "the run's name", s->name, "is not printable");
    if (!is_text(s->format, INVAR_CHECKPOINT_WORD_SIZE) ||
        !is_text(s->numerics, INVAR_CHECKPOINT_WORD_SIZE))
        return fail_value(where, "format or numerics", s->format, "is not printable");
    if (s->adapters.rank < 0 || !is_text(s->adapters.targets, INVAR_CHECKPOINT_TARGETS_SIZE))
        return fail_value(where, "the adapters of", s->adapters.targets, "are impossible");
    if (s->n_cursors < 0 || s->n_cursors > INVAR_CHECKPOINT_CURSORS)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: %lld cursors; 0 to %d", where,
                          (long long)s->n_cursors, INVAR_CHECKPOINT_CURSORS);
    for (int64_t i = 0; i < s->n_cursors; i++)
        if (!is_text(s->cursors[i].name, INVAR_CHECKPOINT_WORD_SIZE) ||
            s->cursors[i].position.epoch < 0 || s->cursors[i].position.offset < 0)
            return fail_value(where, "the cursor", s->cursors[i].name, "is impossible");
    return INVAR_OK;
}

static invar_status check_entry(const invar_checkpoint_entry *e, const char *where)
{
    int64_t room = INT64_MAX / 8;

    if (!is_plain_name(e->set, INVAR_CHECKPOINT_NAME_BYTES))
        return fail_value(where, "the set", e->set, "is not 1 to 200 of A-Z a-z 0-9 . _ -");
    if (!e->name[0] || !is_text(e->name, INVAR_CHECKPOINT_NAME_BYTES))
        return fail_value(where, "the tensor's name", e->name, "is not 1 to 200 printable bytes");
    if (e->rank < 1 || e->rank > INVAR_MAX_RANK)
        return fail_value(where, "tensor", e->name, "has no rank from 1 to 4");
    for (int32_t i = 0; i < e->rank; i++) {
        if (e->shape[i] < 0 || e->shape[i] > room)
            return fail_value(where, "tensor", e->name, "has an impossible shape");
        room = e->shape[i] > 0 ? room / e->shape[i] : room;
    }
    return INVAR_OK;
}

static int compare_by_name(const void *a, const void *b)
{
    const invar_checkpoint_entry *x = a, *y = b;
    int set = strcmp(x->set, y->set);

    return set ? set : strcmp(x->name, y->name);
}

static invar_status check_unique(const invar_checkpoint_index *index, const char *where)
{
    INVAR_AUTO_FREE const invar_checkpoint_entry **order = NULL;

    INVAR_TRY(INVAR_ALLOC(order, (size_t)index->n_entries, "a checkpoint's tensors"));
    for (int64_t i = 0; i < index->n_entries; i++)
        order[i] = &index->entries[i];
    INVAR_TRY(invar_sort((const void **)order, (size_t)index->n_entries, compare_by_name));
    for (int64_t i = 1; i < index->n_entries; i++)
        if (compare_by_name(order[i - 1], order[i]) == 0)
            return fail_value(where, "tensor", order[i]->name, "comes twice in its set");
    return INVAR_OK;
}

/* Finds the runs of entries with equal set; rejects a set whose entries are not adjacent. */
static invar_status find_sets(invar_checkpoint_index *index, const char *where)
{
    index->n_sets = 0;
    for (int64_t i = 0; i < index->n_entries; i++) {
        const char *name = index->entries[i].set;
        if (i > 0 && strcmp(index->entries[i - 1].set, name) == 0) {
            index->sets[index->n_sets - 1].count++;
            continue;
        }
        for (int64_t k = 0; k < index->n_sets; k++)
            if (strcmp(index->sets[k].name, name) == 0)
                return fail_value(where, "the set", name, "does not stand together");
        if (index->n_sets == INVAR_CHECKPOINT_SETS)
            return fail_value(where, "the set", name, "is one too many");
        index->sets[index->n_sets++] = (invar_checkpoint_set){name, i, 1};
    }
    return INVAR_OK;
}

invar_status invar_checkpoint_index_check(invar_checkpoint_index *index, const char *where)
{
    INVAR_TRY(check_state(&index->state, where));
    for (int64_t i = 0; i < index->n_entries; i++)
        INVAR_TRY(check_entry(&index->entries[i], where));
    INVAR_TRY(check_unique(index, where));
    for (int64_t i = 0; i < index->n_blobs; i++)
        if (!invar_checkpoint_blob_name(index->blobs[i]))
            return fail_value(where, "the blob", index->blobs[i],
                              "has no name that a file may have");
    return find_sets(index, where);
}

void invar_checkpoint_index_release(invar_checkpoint_index *index)
{
    invar_free(index->entries);
    json_decref(index->json);
    memset(index, 0, sizeof *index);
}

/* ---- state.json: writing --------------------------------------------------------------------- */

/* Collects failures; all are a lack of memory, and checked once at the end. */
typedef struct json_writer {
    int failed;
} json_writer;

static void put_value(json_writer *w, json_t *object, const char *key, json_t *value)
{
    w->failed |= json_object_set_new(object, key, value);
}

static void put_int(json_writer *w, json_t *object, const char *key, int64_t value)
{
    put_value(w, object, key, json_integer(value));
}

static void put_digest(json_writer *w, json_t *object, const char *key, const invar_digest *digest)
{
    put_value(w, object, key, json_string(INVAR_DIGEST_HEX(digest)));
}

/* Stores the bits of a float, because decimal digits could round. */
static void put_bits(json_writer *w, json_t *object, const char *key, float value)
{
    char hex[16];
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    snprintf(hex, sizeof hex, "%08x", (unsigned)bits);
    put_value(w, object, key, json_string(hex));
}

static json_t *optimizer_json(json_writer *w, const invar_checkpoint_optimizer *o)
{
    json_t *object = json_object();

    put_int(w, object, "steps", o->steps);
    put_bits(w, object, "beta1_power", o->beta1_power);
    put_bits(w, object, "beta2_power", o->beta2_power);
    return object;
}

static json_t *adapters_json(json_writer *w, const invar_checkpoint_adapters *a)
{
    json_t *object = json_object();

    put_int(w, object, "rank", a->rank);
    put_bits(w, object, "alpha", a->alpha);
    if (a->rslora)
        put_value(w, object, "rslora", json_true());
    if (a->ranks[0])
        put_value(w, object, "ranks", json_string(a->ranks));
    if (a->alphas[0])
        put_value(w, object, "alphas", json_string(a->alphas));
    put_value(w, object, "targets", json_string(a->targets));
    put_digest(w, object, "base", &a->base);
    return object;
}

static json_t *cursors_json(json_writer *w, const invar_checkpoint_state *s)
{
    json_t *list = json_array();

    for (int64_t i = 0; i < s->n_cursors; i++) {
        json_t *object = json_object();
        put_value(w, object, "name", json_string(s->cursors[i].name));
        put_int(w, object, "epoch", s->cursors[i].position.epoch);
        put_int(w, object, "offset", s->cursors[i].position.offset);
        w->failed |= json_array_append_new(list, object);
    }
    return list;
}

static json_t *entry_json(json_writer *w, const invar_checkpoint_entry *e)
{
    json_t *object = json_object(), *shape = json_array();

    for (int32_t i = 0; i < e->rank; i++)
        w->failed |= json_array_append_new(shape, json_integer(e->shape[i]));
    put_value(w, object, "set", json_string(e->set));
    put_value(w, object, "name", json_string(e->name));
    put_value(w, object, "dtype", json_string(invar_safetensors_type_name(e->type)));
    put_value(w, object, "shape", shape);
    put_digest(w, object, "digest", &e->digest);
    return object;
}

static json_t *state_json(json_writer *w, const invar_checkpoint_state *s)
{
    json_t *root = json_object(), *run = json_object();

    put_value(w, root, "kind", json_string(KIND));
    put_int(w, root, "version", INVAR_CHECKPOINT_VERSION);
    put_int(w, root, "step", s->step);
    put_int(w, root, "rollout", s->rollout);
    put_int(w, root, "weights", s->weights);
    put_int(w, root, "samples", s->samples);
    put_int(w, root, "groups", s->groups);
    put_digest(w, root, "chain", &s->chain);
    put_value(w, run, "uuid", json_string(s->uuid));
    put_value(w, run, "name", json_string(s->name));
    put_digest(w, run, "identity", &s->identity);
    put_value(w, root, "run", run);
    put_value(w, root, "format", json_string(s->format));
    put_value(w, root, "numerics", json_string(s->numerics));
    put_value(w, root, "actor", optimizer_json(w, &s->actor));
    put_value(w, root, "critic", optimizer_json(w, &s->critic));
    if (s->adapters.rank > 0)
        put_value(w, root, "adapters", adapters_json(w, &s->adapters));
    put_value(w, root, "cursors", cursors_json(w, s));
    return root;
}

/* Formats the index; the caller owns the result. Returns NULL if out of memory. */
static json_t *index_json(const invar_checkpoint_index *index)
{
    json_t *tensors = json_array(), *blobs = json_array(), *root;
    json_writer w = {0};

    root = state_json(&w, &index->state);
    for (int64_t i = 0; i < index->n_entries; i++)
        w.failed |= json_array_append_new(tensors, entry_json(&w, &index->entries[i]));
    for (int64_t i = 0; i < index->n_blobs; i++)
        w.failed |= json_array_append_new(blobs, json_string(index->blobs[i]));
    put_value(&w, root, "tensors", tensors);
    put_value(&w, root, "blobs", blobs);
    if (!w.failed)
        return root;
    json_decref(root);
    return NULL;
}

invar_status invar_checkpoint_index_text(char **out, size_t *bytes_out,
                                         const invar_checkpoint_index *index)
{
    json_t *root = index_json(index);
    invar_status status = invar_json_dump(out, bytes_out, root, JSON_INDENT(1) | JSON_ENSURE_ASCII,
                                          "a checkpoint's state");

    json_decref(root);
    if (status == INVAR_OK)
        (*out)[(*bytes_out)++] = '\n'; // replaces the NUL
    return status;
}

/* ---- state.json: reading --------------------------------------------------------------------- */

static invar_status get_text(char *out, size_t size, const json_t *object, const char *key,
                             const char *where)
{
    const char *text;

    INVAR_TRY(invar_json_string(&text, object, key, where));
    if (strlen(text) >= size)
        return fail_value(where, "the text of", key, "is too long");
    memcpy(out, text, strlen(text) + 1);
    return INVAR_OK;
}

static invar_status get_count(int64_t *out, const json_t *object, const char *key,
                              const char *where)
{
    return invar_json_int(out, object, key, where, 0, INT64_MAX);
}

static invar_status get_digest(invar_digest *out, const json_t *object, const char *key,
                               const char *where)
{
    const char *hex;

    INVAR_TRY(invar_json_string(&hex, object, key, where));
    if (strlen(hex) != 32 || strspn(hex, "0123456789abcdef") != 32)
        return fail_value(where, "the digest", key, "is not 32 hexadecimal digits");
    return invar_digest_parse(out, hex);
}

static invar_status get_bits(float *out, const json_t *object, const char *key, const char *where)
{
    static const char digits[] = "0123456789abcdef";
    uint32_t bits = 0;
    const char *hex;

    INVAR_TRY(invar_json_string(&hex, object, key, where));
    if (strlen(hex) != 8 || strspn(hex, digits) != 8)
        return fail_value(where, "the number", key, "is not 8 hexadecimal digits");
    for (int i = 0; i < 8; i++)
        bits = bits << 4 | (uint32_t)(strchr(digits, hex[i]) - digits);
    memcpy(out, &bits, sizeof bits);
    return INVAR_OK;
}

static invar_status get_optimizer(invar_checkpoint_optimizer *out, const json_t *root,
                                  const char *key, const char *where)
{
    const json_t *object = json_object_get(root, key);

    INVAR_TRY(get_count(&out->steps, object, "steps", where));
    INVAR_TRY(get_bits(&out->beta1_power, object, "beta1_power", where));
    return get_bits(&out->beta2_power, object, "beta2_power", where);
}

/*
 * Reads the adapters, which are absent for a full model or in a checkpoint of an earlier version.
 */
static invar_status get_adapters(invar_checkpoint_adapters *out, const json_t *root,
                                 const char *where)
{
    const json_t *object = json_object_get(root, "adapters");

    if (!object)
        return INVAR_OK;
    INVAR_TRY(invar_json_int(&out->rank, object, "rank", where, 1, MAX_ADAPTER_RANK));
    INVAR_TRY(get_bits(&out->alpha, object, "alpha", where));
    if (!(out->alpha >= 1e-6f && out->alpha <= 1e6f))
        return fail_value(where, "the number", "alpha", "is not from 1e-6 to 1e6");
    if (invar_json_has(object, "rslora"))
        INVAR_TRY(invar_json_bool(&out->rslora, object, "rslora", where));
    if (invar_json_has(object, "ranks"))
        INVAR_TRY(get_text(out->ranks, sizeof out->ranks, object, "ranks", where));
    if (invar_json_has(object, "alphas"))
        INVAR_TRY(get_text(out->alphas, sizeof out->alphas, object, "alphas", where));
    INVAR_TRY(get_text(out->targets, sizeof out->targets, object, "targets", where));
    return get_digest(&out->base, object, "base", where);
}

/* Returns the list `key`, which may have at most `most` elements. */
static invar_status get_list(const json_t **out, const json_t *root, const char *key,
                             const char *where, size_t most)
{
    *out = json_object_get(root, key);
    if (!json_is_array(*out) || json_array_size(*out) > most)
        return fail_value(where, "the list", key, "is missing or too long");
    return INVAR_OK;
}

static invar_status get_cursors(invar_checkpoint_state *out, const json_t *root, const char *where)
{
    const json_t *list;

    INVAR_TRY(get_list(&list, root, "cursors", where, INVAR_CHECKPOINT_CURSORS));
    for (size_t i = 0; i < json_array_size(list); i++) {
        invar_checkpoint_cursor *cursor = &out->cursors[i];
        const json_t *object = json_array_get(list, i);
        INVAR_TRY(get_text(cursor->name, sizeof cursor->name, object, "name", where));
        INVAR_TRY(get_count(&cursor->position.epoch, object, "epoch", where));
        INVAR_TRY(get_count(&cursor->position.offset, object, "offset", where));
    }
    out->n_cursors = (int64_t)json_array_size(list);
    return INVAR_OK;
}

static invar_status get_state(invar_checkpoint_state *s, const json_t *root, const char *where)
{
    const json_t *run = json_object_get(root, "run");

    INVAR_TRY(get_count(&s->step, root, "step", where));
    INVAR_TRY(get_count(&s->rollout, root, "rollout", where));
    INVAR_TRY(get_count(&s->weights, root, "weights", where));
    INVAR_TRY(get_count(&s->samples, root, "samples", where));
    INVAR_TRY(get_count(&s->groups, root, "groups", where));
    INVAR_TRY(get_digest(&s->chain, root, "chain", where));
    INVAR_TRY(get_text(s->uuid, sizeof s->uuid, run, "uuid", where));
    INVAR_TRY(get_text(s->name, sizeof s->name, run, "name", where));
    INVAR_TRY(get_digest(&s->identity, run, "identity", where));
    INVAR_TRY(get_text(s->format, sizeof s->format, root, "format", where));
    INVAR_TRY(get_text(s->numerics, sizeof s->numerics, root, "numerics", where));
    INVAR_TRY(get_optimizer(&s->actor, root, "actor", where));
    INVAR_TRY(get_optimizer(&s->critic, root, "critic", where));
    INVAR_TRY(get_adapters(&s->adapters, root, where));
    return get_cursors(s, root, where);
}

static invar_status get_type(invar_safetensors_type *out, const json_t *object, const char *where)
{
    const char *name;

    INVAR_TRY(invar_json_string(&name, object, "dtype", where));
    for (int i = 0; i < TYPES; i++)
        if (strcmp(invar_safetensors_type_name(types[i]), name) == 0) {
            *out = types[i];
            return INVAR_OK;
        }
    return fail_value(where, "the type", name, "is none of F32, BF16, I32, I64");
}

static invar_status get_entry(invar_checkpoint_entry *e, const json_t *object, const char *where)
{
    const json_t *shape;

    INVAR_TRY(invar_json_string(&e->set, object, "set", where));
    INVAR_TRY(invar_json_string(&e->name, object, "name", where));
    INVAR_TRY(get_type(&e->type, object, where));
    INVAR_TRY(get_list(&shape, object, "shape", where, INVAR_MAX_RANK));
    e->rank = (int32_t)json_array_size(shape);
    for (int32_t i = 0; i < e->rank; i++) {
        const json_t *extent = json_array_get(shape, (size_t)i);
        e->shape[i] = json_is_integer(extent) ? json_integer_value(extent) : -1;
    }
    return get_digest(&e->digest, object, "digest", where);
}

static invar_status get_version(const json_t *root, const char *where)
{
    const char *kind;
    int64_t version;

    INVAR_TRY(invar_json_string(&kind, root, "kind", where));
    if (strcmp(kind, KIND) != 0)
        return fail_value(where, "the kind", kind, "is not " KIND);
    INVAR_TRY(get_count(&version, root, "version", where));
    if (version != INVAR_CHECKPOINT_VERSION)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s: version %lld of the format; this program knows %d", where,
                          (long long)version, INVAR_CHECKPOINT_VERSION);
    return INVAR_OK;
}

static invar_status get_index(invar_checkpoint_index *out, const char *where, const char *text,
                              size_t bytes)
{
    const json_t *list, *blobs;

    INVAR_TRY(invar_json_parse(&out->json, where, text, bytes));
    INVAR_TRY(get_version(out->json, where));
    INVAR_TRY(get_state(&out->state, out->json, where));
    INVAR_TRY(get_list(&list, out->json, "tensors", where, SIZE_MAX));
    INVAR_TRY(INVAR_ALLOC_ZEROED(out->entries, json_array_size(list), "a checkpoint's tensors"));
    for (size_t i = 0; i < json_array_size(list); i++)
        INVAR_TRY(get_entry(&out->entries[i], json_array_get(list, i), where));
    out->n_entries = (int64_t)json_array_size(list);
    INVAR_TRY(get_list(&blobs, out->json, "blobs", where, INVAR_CHECKPOINT_BLOBS));
    for (size_t i = 0; i < json_array_size(blobs); i++) {
        out->blobs[i] = json_string_value(json_array_get(blobs, i));
        if (!out->blobs[i])
            return fail_value(where, "the list", "blobs", "holds what is no text");
    }
    out->n_blobs = (int64_t)json_array_size(blobs);
    return invar_checkpoint_index_check(out, where);
}

invar_status invar_checkpoint_index_parse(invar_checkpoint_index *out, const char *where,
                                          const char *text, size_t bytes)
{
    invar_status status;

    memset(out, 0, sizeof *out);
    status = get_index(out, where, text, bytes);
    if (status != INVAR_OK)
        invar_checkpoint_index_release(out);
    return invar_json_as_corrupt(status);
}

/* ---- hashes.xxh ------------------------------------------------------------------------------ */

/* Inserts a file, sorted by name. */
static invar_status add_file(invar_checkpoint_files *files, const char *name, const char *suffix)
{
    char full[INVAR_CHECKPOINT_FILE_SIZE];
    int64_t at = files->count;

    snprintf(full, sizeof full, "%s%s", name, suffix);
    while (at > 0 && strcmp(files->files[at - 1].name, full) > 0)
        at--;
    if (at > 0 && strcmp(files->files[at - 1].name, full) == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "checkpoint: two of its files have the name %s",
                          full);
    memmove(&files->files[at + 1], &files->files[at],
            (size_t)(files->count - at) * sizeof *files->files);
    memset(&files->files[at], 0, sizeof *files->files);
    memcpy(files->files[at].name, full, sizeof full);
    files->count++;
    return INVAR_OK;
}

invar_status invar_checkpoint_files_list(invar_checkpoint_files *out,
                                         const invar_checkpoint_index *index)
{
    out->count = 0;
    INVAR_TRY(add_file(out, INVAR_CHECKPOINT_STATE, ""));
    for (int64_t i = 0; i < index->n_sets; i++)
        INVAR_TRY(add_file(out, index->sets[i].name, ".safetensors"));
    for (int64_t i = 0; i < index->n_blobs; i++)
        INVAR_TRY(add_file(out, index->blobs[i], ""));
    return INVAR_OK;
}

size_t invar_checkpoint_files_text(char out[INVAR_CHECKPOINT_HASHES_SIZE],
                                   const invar_checkpoint_files *files)
{
    size_t used = 0;

    for (int64_t i = 0; i < files->count; i++) {
        used += (size_t)snprintf(out + used, INVAR_CHECKPOINT_HASHES_SIZE - used, "%s  %s\n",
                                 INVAR_DIGEST_HEX(&files->files[i].hash), files->files[i].name);
    }
    return used;
}

/* Parses one line and advances *at to the next. */
static bool parse_line(invar_checkpoint_file *out, const char **at, const char *end)
{
    const char *newline = memchr(*at, '\n', (size_t)(end - *at));
    size_t length = newline ? (size_t)(newline - *at) : 0;
    char hex[INVAR_DIGEST_HEX_SIZE] = "";

    if (length < 35 || length - 34 >= sizeof out->name || memchr(*at, '\0', length))
        return false;
    memcpy(hex, *at, 32);
    memset(out, 0, sizeof *out);
    memcpy(out->name, *at + 34, length - 34);
    if (memcmp(*at + 32, "  ", 2) != 0 || strspn(hex, "0123456789abcdef") != 32 ||
        invar_digest_parse(&out->hash, hex) != INVAR_OK ||
        !is_file_name(out->name, sizeof out->name))
        return false;
    *at = newline + 1;
    return true;
}

invar_status invar_checkpoint_files_parse(invar_checkpoint_files *out, const char *where,
                                          const char *text, size_t bytes)
{
    const char *at = text, *end = text + bytes;

    out->count = 0;
    while (at < end) {
        invar_checkpoint_file *file = &out->files[out->count];
        if (out->count == INVAR_CHECKPOINT_FILES || !parse_line(file, &at, end) ||
            (out->count > 0 && strcmp(file[-1].name, file->name) >= 0))
            return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                              "%s: line %lld is no hash and file in the order of names", where,
                              (long long)out->count + 1);
        out->count++;
    }
    return INVAR_OK;
}

const invar_checkpoint_file *invar_checkpoint_files_find(const invar_checkpoint_files *files,
                                                         const char *name)
{
    for (int64_t i = 0; i < files->count; i++)
        if (strcmp(files->files[i].name, name) == 0)
            return &files->files[i];
    return NULL;
}
