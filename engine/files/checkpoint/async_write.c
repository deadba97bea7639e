/*
 * async_write.c - a checkpoint that a thread copies and writes while its caller goes on.
 *
 * What is saved lies still from one optimizer step to the next. So the thread copies it all into
 * one block of the host's memory while ops run, tells that it has, and writes the files from there.
 * A device runs copies and ops in the order of the calls, and is one thread's: the copies have a
 * device of their own, the same one opened again. The thread uses neither the caller's device nor
 * its pool nor the ledger.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/block_carver.h"
#include "engine/files/checkpoint/write_internal.h"

#include "base/invar_banned.h"

#define THREADS_MOST 4 /* that copy within the host's memory: a few can do what it can */

struct invar_checkpoint_writer {
    const invar_device *dev; /* whose memory is copied; NULL: the host's alone */
    invar_device beside;     /* the same, with a pool, for the thread */
    void *room;              /* for the tensors; kept from one checkpoint to the next */
    size_t bytes;
    bool begun;
    const char *save; /* the caller's, who says with it where the folder is by now */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t told;
    bool copied;         /* or failed to; under the lock */
    _Atomic bool done;   /* the thread is about to end */
    invar_status status; /* of the files, and why; the thread's until it is joined */
    invar_error why;
    invar_checkpoint_write_state making;
    void *lists;                        /* the block of what follows, and of the blobs' bytes */
    invar_checkpoint_tensor *from, *to; /* (content.n_tensors) */
    invar_checkpoint_content content;   /* the copies */
};

static invar_status open_beside(invar_checkpoint_writer *w)
{
    int threads = w->dev ? invar_pool_threads(w->dev->pool) : 1;

    // it only copies, so the arithmetic of products need not be tried again
    w->beside = (invar_device){.backend = w->dev ? w->dev->backend : invar_backend_cpu(),
                               .numerics = INVAR_NUMERICS_IEEE};
    INVAR_TRY(invar_pool_new(&w->beside.pool, threads < THREADS_MOST ? threads : THREADS_MOST));
    return invar_device_open(&w->beside);
}

invar_status invar_checkpoint_writer_new(invar_checkpoint_writer **out, const invar_device *dev)
{
    invar_checkpoint_writer *w;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_alloc((void **)&w, 1, sizeof *w, "a writer of checkpoints"));
    memset(w, 0, sizeof *w);
    w->dev = dev;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->told, NULL);
    status = open_beside(w);
    if (status != INVAR_OK) {
        invar_checkpoint_writer_free(w);
        return status;
    }
    *out = w;
    return INVAR_OK;
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* The lists, and the blobs' bytes; a carver without a block measures. */
static void lay_out(invar_checkpoint_writer *w, invar_carver *c,
                    const invar_checkpoint_content *content)
{
    size_t bytes = (size_t)content->n_tensors * sizeof *content->tensors;
    invar_checkpoint_blob *blobs;

    w->from = invar_carve(c, bytes);
    w->to = invar_carve(c, bytes);
    blobs = invar_carve(c, (size_t)content->n_blobs * sizeof *blobs);
    for (int64_t i = 0; i < content->n_blobs; i++) {
        invar_checkpoint_blob blob = content->blobs[i];
        void *data = invar_carve(c, blob.bytes);
        if (!c->block)
            continue;
        if (blob.bytes > 0)
            memcpy(data, blob.data, blob.bytes);
        blob.data = data;
        blobs[i] = blob;
    }
    w->content = (invar_checkpoint_content){.state = &w->making.index.state,
                                            .tensors = w->to,
                                            .n_tensors = content->n_tensors,
                                            .blobs = blobs,
                                            .n_blobs = content->n_blobs};
}

/* All that `content` leads to, but strings and what the tensors hold. */
static invar_status take_lists(invar_checkpoint_writer *w, const invar_checkpoint_content *content)
{
    invar_carver c = {NULL, 0};

    lay_out(w, &c, content);
    INVAR_TRY(invar_alloc(&w->lists, c.used, 1, "the lists of a checkpoint"));
    c = (invar_carver){w->lists, 0};
    lay_out(w, &c, content);
    for (int64_t i = 0; i < content->n_tensors; i++) {
        w->from[i] = w->to[i] = content->tensors[i];
        w->to[i].dev = NULL;
    }
    return INVAR_OK;
}

/* Of one checkpoint, whatever became of it. */
static void checkpoint_writer_release(invar_checkpoint_writer *w)
{
    invar_free(w->lists);
    w->lists = NULL;
    invar_checkpoint_write_state_release(&w->making);
}

/* ---- copies, by the thread ------------------------------------------------------------------- */

static void release_room(invar_checkpoint_writer *w)
{
    if (w->room)
        invar_device_free_host(&w->beside, w->room);
    w->room = NULL;
    w->bytes = 0;
}

static invar_status make_room(invar_checkpoint_writer *w, size_t bytes)
{
    if (bytes <= w->bytes)
        return INVAR_OK;
    release_room(w);
    INVAR_TRY(invar_device_alloc_host(&w->beside, &w->room, bytes,
                                      "the copy that a checkpoint is written from"));
    w->bytes = bytes;
    return INVAR_OK;
}

static void place_copies(invar_checkpoint_writer *w, invar_carver *c)
{
    for (int64_t i = 0; i < w->content.n_tensors; i++)
        w->to[i].tensor.data = invar_carve(c, invar_host_staging_span(&w->from[i].tensor));
}

static invar_status copy_near(void *payload, int64_t i, int worker)
{
    const invar_checkpoint_writer *w = payload;
    size_t bytes = invar_host_staging_span(&w->from[i].tensor);

    (void)worker;
    if (!w->from[i].dev && bytes > 0)
        memcpy(w->to[i].tensor.data, w->from[i].tensor.data, bytes);
    return INVAR_OK;
}

static invar_status copy_tensors(invar_checkpoint_writer *w)
{
    invar_carver c = {NULL, 0};

    place_copies(w, &c);
    INVAR_TRY(make_room(w, c.used));
    c = (invar_carver){w->room, 0};
    place_copies(w, &c);
    for (int64_t i = 0; i < w->content.n_tensors; i++)
        if (w->from[i].dev)
            INVAR_TRY(invar_device_download(&w->beside, w->to[i].tensor.data,
                                            w->from[i].tensor.data,
                                            invar_host_staging_span(&w->from[i].tensor)));
    return invar_pool_run(w->beside.pool, w->content.n_tensors, copy_near, w);
}

static void tell_copied(invar_checkpoint_writer *w, bool copied)
{
    pthread_mutex_lock(&w->lock);
    w->copied = copied;
    pthread_cond_signal(&w->told);
    pthread_mutex_unlock(&w->lock);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void *copy_and_write(void *payload)
{
    invar_checkpoint_writer *w = payload;

    w->status = copy_tensors(w);
    tell_copied(w, true);
    if (w->status == INVAR_OK)
        w->status = invar_checkpoint_make_files(&w->making);
    invar_error_take(&w->why);
    atomic_store(&w->done, true);
    return NULL;
}

static invar_status checkpoint_writer_start(invar_checkpoint_writer *w)
{
    int rc;

    w->making.content = &w->content;
    w->making.options.pool = NULL;
    tell_copied(w, false);
    atomic_store(&w->done, false);
    rc = pthread_create(&w->thread, NULL, copy_and_write, w);
    if (rc != 0)
        return INVAR_FAIL(INVAR_E_IO, rc, "checkpoint: its thread did not start: %s", strerror(rc));
    w->begun = true;
    return INVAR_OK;
}

invar_status invar_checkpoint_begin(invar_checkpoint_writer *writer, const char *save,
                                    const invar_checkpoint_content *content,
                                    const invar_checkpoint_options *options)
{
    invar_status status;

    if (writer->begun)
        return INVAR_FAIL(INVAR_E_STATE, 0, "checkpoint: the one before has not been finished");
    writer->save = save;
    status = invar_checkpoint_prepare(&writer->making, save, content, options);
    if (status == INVAR_OK)
        status = take_lists(writer, content);
    if (status == INVAR_OK && writer->dev)
        status =
            invar_device_synchronize(writer->dev); // its copies do not wait for the other's ops
    if (status == INVAR_OK)
        status = checkpoint_writer_start(writer);
    if (status != INVAR_OK)
        checkpoint_writer_release(writer);
    return status;
}

bool invar_checkpoint_copying(invar_checkpoint_writer *writer)
{
    bool copied;

    if (!writer->begun)
        return false;
    pthread_mutex_lock(&writer->lock);
    copied = writer->copied;
    pthread_mutex_unlock(&writer->lock);
    return !copied;
}

void invar_checkpoint_await_copy(invar_checkpoint_writer *writer)
{
    if (!writer->begun)
        return;
    pthread_mutex_lock(&writer->lock);
    while (!writer->copied)
        pthread_cond_wait(&writer->told, &writer->lock);
    pthread_mutex_unlock(&writer->lock);
}

const char *invar_checkpoint_writer_save(const invar_checkpoint_writer *writer)
{
    return writer->making.save;
}

bool invar_checkpoint_ready(const invar_checkpoint_writer *writer)
{
    return writer->begun && atomic_load(&writer->done);
}

/* The files are there, or are known to have failed. */
static invar_status checkpoint_writer_join(invar_checkpoint_writer *w)
{
    INVAR_CHECK(pthread_join(w->thread, NULL) == 0);
    w->begun = false;
    if (w->status != INVAR_OK)
        invar_error_put(&w->why);
    return w->status;
}

invar_status invar_checkpoint_finish(invar_digest *hash_out, invar_checkpoint_writer *writer)
{
    invar_status status;

    if (!writer->begun)
        return INVAR_OK;
    status = checkpoint_writer_join(writer);
    if (status == INVAR_OK)
        status = invar_checkpoint_publish(&writer->making, writer->save);
    if (status == INVAR_OK && hash_out)
        *hash_out = writer->making.hash;
    checkpoint_writer_release(writer);
    return status;
}

void invar_checkpoint_writer_free(invar_checkpoint_writer *writer)
{
    invar_error before;

    if (!writer)
        return;
    if (writer->begun) {
        invar_error_take(&before); // what the next writer tidies up is no news
        if (checkpoint_writer_join(writer) != INVAR_OK ||
            invar_held_folder_remove(writer->making.partial) != INVAR_OK)
            invar_error_clear();
        invar_error_put(&before);
        checkpoint_writer_release(writer);
    }
    release_room(writer);
    invar_device_close(&writer->beside);
    invar_pool_free(writer->beside.pool);
    pthread_cond_destroy(&writer->told);
    pthread_mutex_destroy(&writer->lock);
    invar_free(writer);
}
