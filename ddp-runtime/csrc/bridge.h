// The contract between ddp-runtime and libtorch.
//
// Every function returns 0 on success. On failure it returns 1 and leaves a text, readable with ddp_error() on the
// same thread until the next call. No C++ exception leaves a function here, and no Rust panic may enter one: callbacks
// report failure the same way, by returning non-zero after ddp_set_error().
//
// A DdpTensor is an at::Tensor* as tch holds it (`tch::Tensor::as_ptr`). Functions borrow the tensors they are given;
// a tensor that is returned is owned by the caller, who frees it through tch (`Tensor::from_ptr`).
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void* DdpTensor;
typedef struct DdpStore DdpStore;
typedef struct DdpGroup DdpGroup;
typedef struct DdpWork DdpWork;
typedef struct DdpLeaf DdpLeaf;
typedef struct DdpBatchNorm DdpBatchNorm;

// ---- error.cc: texts, and what is set once a process
const char* ddp_error(void);
void ddp_set_error(const char* text, size_t length);
// Makes TORCH_CPP_LOG_LEVEL count, as it does under Python.
int ddp_init_logging(void);
// Keeps freed memory in the process instead of giving it back to the kernel, where the C library can.
void ddp_keep_freed_memory(void);
// From now on libtorch computes on the calling thread alone when that thread calls it, where it uses OpenMP.
int ddp_compute_alone(void);

// ---- store.cc: c10d::TCPStore
// `listen_fd` is a bound and listening socket to serve from, or -1.
int ddp_store_new(
    const char* host, uint16_t port, int is_server, int listen_fd, int64_t timeout_ms, DdpStore** out);
void ddp_store_free(DdpStore* store);
int ddp_store_set(DdpStore* store, const char* key, const uint8_t* data, size_t length);
// Waits for the key; `take` receives the value during the call.
int ddp_store_get(
    DdpStore* store,
    const char* key,
    int64_t timeout_ms,
    void (*take)(void* context, const uint8_t* data, size_t length),
    void* context);
int ddp_store_check(DdpStore* store, const char* key, int* out);

// ---- gloo.cc: c10d::ProcessGroupGloo
// `address` is the local address that the peers connect to, "127.0.0.1" on one host.
int ddp_gloo_new(
    DdpStore* store,
    const char* prefix,
    int rank,
    int size,
    const char* address,
    int64_t timeout_ms,
    DdpGroup** out);
void ddp_gloo_free(DdpGroup* group);
enum { DDP_SUM = 0, DDP_MIN = 1, DDP_MAX = 2, DDP_PRODUCT = 3 };
int ddp_gloo_all_reduce(DdpGroup* group, DdpTensor tensor, int op, DdpWork** out);
int ddp_gloo_broadcast(DdpGroup* group, DdpTensor tensor, int root, DdpWork** out);
// `output` is contiguous, with the ranks' inputs one after another.
int ddp_gloo_all_gather(DdpGroup* group, DdpTensor output, DdpTensor input, DdpWork** out);
// Waits at most `timeout_ms`; `done` tells whether the work has finished.
int ddp_work_wait(DdpWork* work, int64_t timeout_ms, int* done);
int ddp_work_is_done(DdpWork* work, int* done);
void ddp_work_free(DdpWork* work);

// ---- tensor.cc
int ddp_randperm(uint64_t seed, int64_t n, int64_t* out);
// torch.multinomial of `count` weights: `samples` draws into `out`, from a CPU generator seeded with `seed`.
int ddp_multinomial(
    uint64_t seed, const double* weights, int64_t count, int64_t samples, int replacement, int64_t* out);
// A tensor over `flat`'s storage, from element `offset`, with the sizes of `like` and its strides where those are dense.
// It is no autograd view, so that zero_grad may detach it in place.
int ddp_view_like(DdpTensor flat, int64_t offset, DdpTensor like, DdpTensor* out);
// What tells two tensors apart: the address of the object that all handles to one share.
int ddp_identity(DdpTensor tensor, uintptr_t* out);
// Whether somebody beside the caller's handle `view` and `parameter`.grad holds the view; whether it is that gradient.
int ddp_view_use(DdpTensor parameter, DdpTensor view, int* held, int* is_gradient);
// Holders of the tensor, the caller's handle among them, and the number of times it was written to in place.
int ddp_tensor_state(DdpTensor tensor, int64_t* holders, int64_t* version);
// Tensors that share the storage.
int ddp_storage_uses(DdpTensor tensor, int64_t* out);
// An alias that shares the data, but neither autograd history nor version counter.
int ddp_data_alias(DdpTensor tensor, DdpTensor* out);
int ddp_checksum(DdpTensor tensor, uint64_t* out);
// A flat tensor over memory that is not libtorch's, with the dtype and device of `like`. `release` is called with
// `context` when the last tensor over it is gone, on whatever thread that is.
int ddp_tensor_over(
    void* data,
    int64_t elements,
    DdpTensor like,
    void (*release)(void* context),
    void* context,
    DdpTensor* out);
// Moves `parameter`.grad into `view`, times `scale`, and makes `view` the gradient. `state` tells what was there.
// A scale of 0 leaves out what was there, also infinities. With `defer` a gradient that lies there already is not scaled.
enum { DDP_GRAD_UNDEFINED = 0, DDP_GRAD_MOVED = 1, DDP_GRAD_IN_PLACE = 2, DDP_GRAD_UNSCALED = 3 };
int ddp_grad_into_view(DdpTensor parameter, DdpTensor view, double scale, int defer, int* state);
// Makes `view` the gradient of `parameter`, or with a null view leaves it without one.
int ddp_set_grad(DdpTensor parameter, DdpTensor view);

// ---- lend.cc: memory in which a backward makes large gradients
typedef struct {
  void* context;
  // Memory for a tensor of so many bytes, and the `owner` that is released when the tensor is gone; null: none for this one.
  void* (*lend)(void* context, size_t bytes, void** owner);
  // On any thread, also after the lender is gone.
  void (*release)(void* owner);
} DdpLender;
// Smaller tensors are not asked for.
enum { DDP_LEND_LEAST = 1 << 20 };
// From now on `lender`, or nobody with null, is asked for the tensors that backwards make. It must outlive the next call.
int ddp_lender_set(const DdpLender* lender);
// Where the gradient of `parameter` lies in lent memory that nobody else holds, as autograd's layout contract wants it: itself, and
// all of its elements in the order in which they lie. Else both are left as they are. In a `ready` callback, or between backwards.
int ddp_grad_adopt(DdpTensor parameter, DdpTensor* view, DdpTensor* flat);

// ---- cuda.cc: libtorch's CUDA half, where it is loaded
// Makes `ordinal` the device of this thread.
int ddp_cuda_set_device(int ordinal);
// The cudaStream_t on which this thread's operations on that device run: null is the default stream.
int ddp_cuda_current_stream(int ordinal, void** out);

// ---- engine.cc: the autograd engine
typedef struct {
  void* context;
  // A backward is about to begin. `leaves` are the parameters that it will reach (borrowed, in the order of the walk) and
  // `identities` what tells them apart. `batch_norms` counts the synchronised layers on the way, and `fused_batch_norms`
  // those among them with fused kernels. `may_leave_undefined`: some leaves may end without a gradient. `scale` is to be
  // applied to the gradients at the roots.
  int (*begin)(
      void* context,
      const DdpTensor* leaves,
      const uintptr_t* identities,
      size_t count,
      size_t batch_norms,
      size_t fused_batch_norms,
      int create_graph,
      int may_leave_undefined,
      double* scale);
  // The gradient of a watched leaf is complete. Any thread of the engine.
  int (*ready)(void* context, uint32_t id);
  // The backward has returned (`failed` = 0) or thrown.
  int (*end)(void* context, int failed);
} DdpCallbacks;
// Installs the engine, once a process. Without callbacks it does what libtorch's own does.
int ddp_engine_install(void);
// Routes every outermost backward that stores gradients to `callbacks`, or to nobody with null.
// The callbacks must outlive the next call of this function.
int ddp_engine_route(const DdpCallbacks* callbacks);
// Hooks a leaf; the gradient accumulator is kept alive until ddp_leaf_free().
int ddp_leaf_watch(DdpTensor tensor, uint32_t id, DdpLeaf** out);
void ddp_leaf_free(DdpLeaf* leaf);

// ---- batch_norm.cc, fused_batch_norm.cc: batch normalisation over all ranks
typedef struct {
  // `layer` becomes the number of the layer whose running means are the tensor with this identity (0: it has none) where its
  // training is to be synchronised, else 0. On any thread.
  int (*select)(uintptr_t running_mean, uint64_t* layer);
  // Turns this rank's count of values a channel, means and (biased) variances into those of all ranks.
  int (*forward)(uint64_t layer, size_t channels, double* count, double* means, double* variances);
  // Turns this rank's sums over values, of gradients and of gradients times normalised inputs, into those of all ranks.
  int (*backward)(uint64_t layer, size_t channels, double* sums, double* products);
  // With fused kernels: `own` (2 * channels + 1 values, on their device) of each rank whose `count` of values a channel is not 0
  // makes a row of `rows`, in the order of the ranks. The device is not waited for.
  int (*gather)(uint64_t layer, size_t channels, int64_t count, DdpTensor own, DdpTensor* rows);
  // With fused kernels: adds up `sums` (2 * channels values, on their device) over all ranks, in place. As `gather`.
  int (*add_up)(uint64_t layer, size_t channels, DdpTensor sums);
} DdpBatchNormCallbacks;
// Until ddp_batch_norm_remove(), batch_norm asks `callbacks`, which must live as long. One at a time.
int ddp_batch_norm_install(const DdpBatchNormCallbacks* callbacks, DdpBatchNorm** out);
void ddp_batch_norm_remove(DdpBatchNorm* installed);

#ifdef __cplusplus
}
#endif
