/*
 * status.h - status codes and the per-thread error record.
 *
 * Every function that can fail returns an invar_status. A failure is created in one way only,
 * INVAR_FAIL, which sets the record and yields the code, so a code without a message cannot exist.
 * The record lives in thread-local storage with fixed size: the error path never allocates.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_STATUS_H
#define INVAR_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Codes name the reaction that is open to the caller, not the place that failed. */
typedef enum invar_status {
    INVAR_OK = 0,
    INVAR_E_INVALID = -1,     /* the caller passed something wrong: fix the call or the input */
    INVAR_E_NOMEM = -2,       /* memory is exhausted */
    INVAR_E_IO = -3,          /* the operating system refused; native holds errno */
    INVAR_E_CORRUPT = -4,     /* a file is damaged or hostile */
    INVAR_E_STATE = -5,       /* the object is not in a state that allows this */
    INVAR_E_UNSUPPORTED = -6, /* valid, but not on this build, backend or machine */
    INVAR_E_NOTFOUND = -7,    /* no such thing */
    INVAR_E_BUSY = -8,        /* somebody else holds it */
    INVAR_E_MISMATCH = -9,    /* bits differ: a result, not a malfunction */
    INVAR_E_CUDA = -10,       /* native holds cudaError_t */
    INVAR_E_NCCL = -11,       /* native holds ncclResult_t */
    INVAR_E_SQL = -12,        /* native holds the extended SQLite code */
    INVAR_E_GIT = -13,        /* native holds the libgit2 code */
    INVAR_E_MPI = -14,        /* native holds the MPI code */
    INVAR_E_NODEVICE = -15    /* no device of that kind here: choose another */
} invar_status;

#define INVAR_ERROR_MESSAGE_SIZE 4096

typedef struct invar_error {
    invar_status status;
    int native;       /* the code of the library underneath, 0 where there is none */
    const char *file; /* where the failure was created */
    int line;
    char message[INVAR_ERROR_MESSAGE_SIZE]; /* one line, no trailing newline */
} invar_error;

#if defined(__GNUC__)
#define INVAR_MUST_USE __attribute__((warn_unused_result))
#define INVAR_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define INVAR_EXPORT                                                                               \
    __attribute__((visibility("default"))) /* modules call it (base/process/module.h) */
#else
#define INVAR_MUST_USE
#define INVAR_PRINTF(fmt, first)
#define INVAR_EXPORT
#endif

/* The record of this thread's last failure; never NULL; status is INVAR_OK when there is none. */
const invar_error *invar_error_last(void);

/* Forgets the record after a failure has been handled. */
INVAR_EXPORT void invar_error_clear(void);

/* Hand a record from a worker thread to the thread that joins it. */
void invar_error_take(invar_error *out);
void invar_error_put(const invar_error *error);

/* Adds "; advice" to the record of a failure with the code `only`; yields `status` again. */
invar_status invar_error_advise(invar_status status, invar_status only,
                                const char *advice) INVAR_MUST_USE;

/* Puts "KEY: " before the record of a failure: the recipe key or flag that is to be changed; yields
   `status` again, also INVAR_OK. */
invar_status invar_error_of_key(invar_status status, const char *key) INVAR_MUST_USE;

/* The code's name, "INVALID"; "UNKNOWN" for a number that is no code. */
const char *invar_status_name(invar_status status);

/* Only through INVAR_FAIL. */
INVAR_EXPORT void invar_error_set(invar_status status, int native, const char *file, int line,
                                  const char *fmt, ...) INVAR_PRINTF(5, 6);

/* Yields `status` itself, so that the compiler knows that a constant failure is not INVAR_OK. */
#define INVAR_FAIL(status, native, ...)                                                            \
    (invar_error_set((status), (native), __FILE__, __LINE__, __VA_ARGS__), (status))

/* Returns from the calling function when `expr` fails. */
#define INVAR_TRY(expr)                                                                            \
    do {                                                                                           \
        invar_status invar_try_status_ = (expr);                                                   \
        if (invar_try_status_ != INVAR_OK)                                                         \
            return invar_try_status_;                                                              \
    } while (0)

/* A broken internal invariant: one line to stderr, then abort. Active in every build. */
#define INVAR_CHECK(cond)                                                                          \
    do {                                                                                           \
        if (!(cond))                                                                               \
            invar_check_failed(#cond, __FILE__, __LINE__);                                         \
    } while (0)

INVAR_EXPORT void invar_check_failed(const char *what, const char *file, int line)
#if defined(__GNUC__)
    __attribute__((noreturn))
#endif
    ;

#ifdef __cplusplus
}
#endif
#endif
