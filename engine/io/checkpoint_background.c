/*
 * checkpoint_background.c - a checkpoint whose files a thread writes while its caller goes on.
 *
 * Everything is copied into one block of the host's memory first, far tensors by the device. The
 * thread works on the copies alone: it uses neither the device nor the pool nor the ledger, all of
 * which belong to the caller's thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/carve.h"
#include "engine/io/checkpoint_make.h"

#include "base/invar_banned.h"

struct invar_checkpoint_writer {
    const invar_device *dev; /* that the room is for */
    void *room;              /* kept from one checkpoint to the next */
    size_t bytes;
    bool begun;
    pthread_t thread;
    _Atomic bool done;   /* the thread is about to end */
    invar_status status; /* of the files, and why; the thread's until it is joined */
    invar_error why;
    invar_checkpoint_making making;
    invar_checkpoint_content content; /* the copies */
};

invar_status invar_checkpoint_writer_new(invar_checkpoint_writer **out, const invar_device *dev)
{
    INVAR_TRY(invar_alloc((void **)out, 1, sizeof **out, "a writer of checkpoints"));
    memset(*out, 0, sizeof **out);
    (*out)->dev = dev;
    return INVAR_OK;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* The lists, with the blobs' bytes and room for the tensors'; a carver without a block measures. */
static void lay_out(invar_checkpoint_tensor **tensors, invar_checkpoint_blob **blobs,
                    invar_carver *c, const invar_checkpoint_content *from)
{
    *tensors = invar_carve(c, (size_t)from->n_tensors * sizeof **tensors);
    *blobs = invar_carve(c, (size_t)from->n_blobs * sizeof **blobs);
    for (int64_t i = 0; i < from->n_blobs; i++) {
        invar_checkpoint_blob blob = from->blobs[i];
        void *data = invar_carve(c, blob.bytes);
        if (!c->block)
            continue;
        if (blob.bytes > 0)
            memcpy(data, blob.data, blob.bytes);
        blob.data = data;
        (*blobs)[i] = blob;
    }
    for (int64_t i = 0; i < from->n_tensors; i++) {
        void *data = invar_carve(c, invar_near_span(&from->tensors[i].tensor));
        if (!c->block)
            continue;
        (*tensors)[i] = from->tensors[i];
        (*tensors)[i].tensor.data = data;
        (*tensors)[i].dev = NULL;
    }
}

static void release_room(invar_checkpoint_writer *w)
{
    if (w->dev)
        invar_device_give_host(w->dev, w->room);
    else
        invar_free(w->room);
    w->room = NULL;
    w->bytes = 0;
}

static invar_status make_room(invar_checkpoint_writer *w, size_t bytes)
{
    static const char what[] = "the copy that a checkpoint is written from";

    if (bytes <= w->bytes)
        return INVAR_OK;
    release_room(w);
    INVAR_TRY(w->dev ? invar_device_take_host(w->dev, &w->room, bytes, what)
                     : invar_alloc(&w->room, bytes, 1, what));
    w->bytes = bytes;
    return INVAR_OK;
}

typedef struct copies {
    const invar_checkpoint_tensor *from, *to;
} copies;

static invar_status copy_near(void *payload, int64_t i, int worker)
{
    const copies *c = payload;
    size_t bytes = invar_near_span(&c->from[i].tensor);

    (void)worker;
    if (!c->from[i].dev && bytes > 0)
        memcpy(c->to[i].tensor.data, c->from[i].tensor.data, bytes);
    return INVAR_OK;
}

static invar_status copy_far(const copies *c, int64_t i)
{
    const invar_checkpoint_tensor *from = &c->from[i];

    if (!from->dev)
        return INVAR_OK;
    return invar_device_get(from->dev, c->to[i].tensor.data, from->tensor.data,
                            invar_near_span(&from->tensor));
}

/* w->content = a copy of all that `from` leads to, but strings. */
static invar_status copy_content(invar_checkpoint_writer *w, const invar_checkpoint_content *from)
{
    invar_carver c = {NULL, 0};
    invar_checkpoint_tensor *tensors;
    invar_checkpoint_blob *blobs;
    copies all;

    lay_out(&tensors, &blobs, &c, from);
    INVAR_TRY(make_room(w, c.used));
    c = (invar_carver){w->room, 0};
    lay_out(&tensors, &blobs, &c, from);
    all = (copies){from->tensors, tensors};
    for (int64_t i = 0; i < from->n_tensors; i++)
        INVAR_TRY(copy_far(&all, i));
    INVAR_TRY(invar_pool_run(w->making.options.pool, from->n_tensors, copy_near, &all));
    w->content = (invar_checkpoint_content){.state = &w->making.index.state,
                                            .tensors = tensors,
                                            .n_tensors = from->n_tensors,
                                            .blobs = blobs,
                                            .n_blobs = from->n_blobs};
    return INVAR_OK;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void *write_files(void *payload)
{
    invar_checkpoint_writer *w = payload;

    w->status = invar_checkpoint_make_files(&w->making);
    invar_error_take(&w->why);
    atomic_store(&w->done, true);
    return NULL;
}

static invar_status start(invar_checkpoint_writer *w)
{
    int rc;

    w->making.content = &w->content;
    w->making.options.pool = NULL;
    atomic_store(&w->done, false);
    rc = pthread_create(&w->thread, NULL, write_files, w);
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
    status = invar_checkpoint_prepare(&writer->making, save, content, options);
    if (status == INVAR_OK)
        status = copy_content(writer, content);
    if (status == INVAR_OK)
        status = start(writer);
    if (status != INVAR_OK)
        invar_checkpoint_making_release(&writer->making);
    return status;
}

bool invar_checkpoint_ready(const invar_checkpoint_writer *writer)
{
    return writer->begun && atomic_load(&writer->done);
}

/* The files are there, or are known to have failed. */
static invar_status join(invar_checkpoint_writer *w)
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
    status = join(writer);
    if (status == INVAR_OK)
        status = invar_checkpoint_publish(&writer->making);
    if (status == INVAR_OK && hash_out)
        *hash_out = writer->making.hash;
    invar_checkpoint_making_release(&writer->making);
    return status;
}

void invar_checkpoint_writer_free(invar_checkpoint_writer *writer)
{
    invar_error before;

    if (!writer)
        return;
    if (writer->begun) {
        invar_error_take(&before); // what the next writer tidies up is no news
        if (join(writer) != INVAR_OK || invar_folder_remove(writer->making.partial) != INVAR_OK)
            invar_error_clear();
        invar_error_put(&before);
        invar_checkpoint_making_release(&writer->making);
    }
    release_room(writer);
    invar_free(writer);
}
