/*
 * async_write.c - writes a checkpoint in a thread while training continues.
 *
 * The saved tensors do not change between two optimizer steps. The thread copies all of them to one
 * block of host memory while ops run, signals that, and writes the files from the copy. A device
 * executes copies and ops in call order and belongs to one thread, so the thread opens the same
 * device a second time for its copies.
 *
 * Rule: the thread uses neither the caller's device nor its pool nor the ledger. `copied` is
 * guarded by the lock; `status` and `why` belong to the thread until it is joined.
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

#define MAX_COPY_THREADS 4 /* threads that copy within host memory: a few saturate its bandwidth */

struct invar_checkpoint_writer {
    const invar_device *dev; /* device of the tensors; NULL if all are in host memory */
    invar_device copy_dev;   /* second handle of the device, with a pool, for the thread */
    void *buffer;            /* copies of the tensors; kept from one checkpoint to the next */
    size_t bytes;
    bool begun;
    const char *save; /* caller's path; the caller updates it if the folder moves */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t copied_cond;
    bool copied;         /* copied, or the copy has failed; guarded by the lock */
    _Atomic bool done;   /* the thread is about to end */
    invar_status status; /* result of copy and files; owned by the thread until it is joined */
    invar_error why;
    invar_checkpoint_write_state making;
    void *lists;                        /* allocation of all fields below and of the blobs' bytes */
    invar_checkpoint_tensor *from, *to; /* (content.n_tensors) tensors and their copies */
    invar_checkpoint_content content;   /* content with the copies */
};

static invar_status open_copy_device(invar_checkpoint_writer *w)
{
    int threads = w->dev ? invar_pool_threads(w->dev->pool) : 1;

    // only copies run there, so the numerics do not matter
    w->copy_dev = (invar_device){.backend = w->dev ? w->dev->backend : invar_backend_cpu(),
                                 .numerics = INVAR_NUMERICS_IEEE};
    INVAR_TRY(
        invar_pool_new(&w->copy_dev.pool, threads < MAX_COPY_THREADS ? threads : MAX_COPY_THREADS));
    return invar_device_open(&w->copy_dev);
}

invar_status invar_checkpoint_writer_new(invar_checkpoint_writer **out, const invar_device *dev)
{
    invar_checkpoint_writer *w;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(w, 1, "a writer of checkpoints"));
    w->dev = dev;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->copied_cond, NULL);
    status = open_copy_device(w);
    if (status == INVAR_OK)
        *out = w;
    else
        invar_checkpoint_writer_free(w);
    return status;
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Lays out the lists and the blobs' bytes; a carver without a block only measures. */
static void lay_out_lists(invar_checkpoint_writer *w, invar_carver *c,
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

/* Copies everything that `content` refers to, except strings and the values of tensors. */
static invar_status copy_lists(invar_checkpoint_writer *w, const invar_checkpoint_content *content)
{
    invar_carver c = {NULL, 0};

    lay_out_lists(w, &c, content);
    INVAR_TRY(invar_alloc(&w->lists, c.used, 1, "the lists of a checkpoint"));
    c = (invar_carver){w->lists, 0};
    lay_out_lists(w, &c, content);
    for (int64_t i = 0; i < content->n_tensors; i++) {
        w->from[i] = w->to[i] = content->tensors[i];
        w->to[i].dev = NULL;
    }
    return INVAR_OK;
}

/* Releases the resources of one checkpoint, complete or not. */
static void release_job(invar_checkpoint_writer *w)
{
    invar_free(w->lists);
    w->lists = NULL;
    invar_checkpoint_write_state_release(&w->making);
}

/* ---- copies in the thread -------------------------------------------------------------------- */

static void free_buffer(invar_checkpoint_writer *w)
{
    if (w->buffer)
        invar_device_free_host(&w->copy_dev, w->buffer);
    w->buffer = NULL;
    w->bytes = 0;
}

static invar_status reserve_buffer(invar_checkpoint_writer *w, size_t bytes)
{
    if (bytes <= w->bytes)
        return INVAR_OK;
    free_buffer(w);
    INVAR_TRY(invar_device_alloc_host(&w->copy_dev, &w->buffer, bytes,
                                      "the copy that a checkpoint is written from"));
    w->bytes = bytes;
    return INVAR_OK;
}

static void assign_copies(invar_checkpoint_writer *w, invar_carver *c)
{
    for (int64_t i = 0; i < w->content.n_tensors; i++)
        w->to[i].tensor.data = invar_carve(c, invar_host_staging_span(&w->from[i].tensor));
}

static invar_status copy_host_tensor(void *payload, int64_t i, int worker)
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

    assign_copies(w, &c);
    INVAR_TRY(reserve_buffer(w, c.used));
    c = (invar_carver){w->buffer, 0};
    assign_copies(w, &c);
    for (int64_t i = 0; i < w->content.n_tensors; i++)
        if (w->from[i].dev)
            INVAR_TRY(invar_device_download(&w->copy_dev, w->to[i].tensor.data,
                                            w->from[i].tensor.data,
                                            invar_host_staging_span(&w->from[i].tensor)));
    return invar_pool_run(w->copy_dev.pool, w->content.n_tensors, copy_host_tensor, w);
}

static void set_copied(invar_checkpoint_writer *w, bool copied)
{
    pthread_mutex_lock(&w->lock);
    w->copied = copied;
    pthread_cond_signal(&w->copied_cond);
    pthread_mutex_unlock(&w->lock);
}

/* ---- thread ---------------------------------------------------------------------------------- */

static void *copy_and_write(void *payload)
{
    invar_checkpoint_writer *w = payload;

    w->status = copy_tensors(w);
    set_copied(w, true);
    if (w->status == INVAR_OK)
        w->status = invar_checkpoint_make_files(&w->making);
    invar_error_take(&w->why);
    atomic_store(&w->done, true);
    return NULL;
}

static invar_status start_thread(invar_checkpoint_writer *w)
{
    int rc;

    w->making.content = &w->content;
    w->making.options.pool = NULL;
    set_copied(w, false);
    atomic_store(&w->done, false);
    rc = pthread_create(&w->thread, NULL, copy_and_write, w);
    if (rc != 0)
        return INVAR_FAIL(INVAR_E_IO, rc, "checkpoint: its thread did not start: %s", strerror(rc));
    w->begun = true;
    return INVAR_OK;
}

invar_status invar_checkpoint_writer_begin(invar_checkpoint_writer *writer, const char *save,
                                           const invar_checkpoint_content *content,
                                           const invar_checkpoint_options *options)
{
    invar_status status;

    if (writer->begun)
        return INVAR_FAIL(INVAR_E_STATE, 0, "checkpoint: the one before has not been finished");
    writer->save = save;
    status = invar_checkpoint_prepare(&writer->making, save, content, options);
    if (status == INVAR_OK)
        status = copy_lists(writer, content);
    if (status == INVAR_OK && writer->dev)
        // the second handle does not wait for ops of the first one
        status = invar_device_synchronize(writer->dev);
    if (status == INVAR_OK)
        status = start_thread(writer);
    if (status != INVAR_OK)
        release_job(writer);
    return status;
}

bool invar_checkpoint_writer_copying(invar_checkpoint_writer *writer)
{
    bool copied;

    if (!writer->begun)
        return false;
    pthread_mutex_lock(&writer->lock);
    copied = writer->copied;
    pthread_mutex_unlock(&writer->lock);
    return !copied;
}

void invar_checkpoint_writer_await_copy(invar_checkpoint_writer *writer)
{
    if (!writer->begun)
        return;
    pthread_mutex_lock(&writer->lock);
    while (!writer->copied)
        pthread_cond_wait(&writer->copied_cond, &writer->lock);
    pthread_mutex_unlock(&writer->lock);
}

const char *invar_checkpoint_writer_save(const invar_checkpoint_writer *writer)
{
    return writer->making.save;
}

bool invar_checkpoint_writer_ready(const invar_checkpoint_writer *writer)
{
    return writer->begun && atomic_load(&writer->done);
}

/* Joins the thread: the files exist, or writing them has failed. */
static invar_status join_thread(invar_checkpoint_writer *w)
{
    INVAR_CHECK(pthread_join(w->thread, NULL) == 0);
    w->begun = false;
    if (w->status != INVAR_OK)
        invar_error_put(&w->why);
    return w->status;
}

invar_status invar_checkpoint_writer_finish(invar_digest *hash_out, invar_checkpoint_writer *writer)
{
    invar_status status;

    if (!writer->begun)
        return INVAR_OK;
    status = join_thread(writer);
    if (status == INVAR_OK)
        status = invar_checkpoint_publish(&writer->making, writer->save);
    if (status == INVAR_OK && hash_out)
        *hash_out = writer->making.hash;
    release_job(writer);
    return status;
}

void invar_checkpoint_writer_free(invar_checkpoint_writer *writer)
{
    invar_error before;

    if (!writer)
        return;
    if (writer->begun) {
        invar_error_take(&before); // leftovers that the next writer removes are not an error
        if (join_thread(writer) != INVAR_OK ||
            invar_held_folder_remove(writer->making.partial) != INVAR_OK)
            invar_error_clear();
        invar_error_put(&before);
        release_job(writer);
    }
    free_buffer(writer);
    invar_device_close(&writer->copy_dev);
    invar_pool_free(writer->copy_dev.pool);
    pthread_cond_destroy(&writer->copied_cond);
    pthread_mutex_destroy(&writer->lock);
    invar_free(writer);
}
