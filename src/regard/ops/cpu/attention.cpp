// The specification is ops/reference.py: `attention`, over packed rows, forward and backward.
//
// One thread processes one head of one sequence. It copies the keys and values to its own memory,
// so that those of a sentence stay in the first-level cache. A query sees a run of keys, so a block
// of queries needs the keys from the first of its runs to the last: time is linear in the length
// with a window, and memory always is. With a window a sequence is processed in pieces, so that the
// keys of a piece fit into the cache for any length. The result of a sequence depends neither on
// other sequences nor on the number of threads.

#include <algorithm>
#include <vector>

#include "vectors.h"

namespace {

constexpr long BLOCK = 16;                            // queries at a time
constexpr long PIECE = 256;                           // queries of a piece, with a window
constexpr int TALL = REGISTER_BYTES == 64 ? 8 : 4;    // a tile of results that fills the registers
constexpr int WIDE = 2;

// The arguments of both passes. Rows of queries, keys and values may be strided: they are parts of
// one product. Strides and sizes count numbers, offsets [B + 1] rows.
struct Shape {
    const int64_t *query_offsets, *key_offsets;
    long sequences, heads, size;
    long query_stride, key_stride, value_stride;
    long causal, window;  // window < 0: no window
};

struct Run {
    long first, last;  // both inclusive
};

struct Sequence {
    long query_start, queries, key_start, keys;
    long ahead;  // the first query has the position of this key
    const Shape& shape;

    Sequence(const Shape& s, long b)
        : query_start(s.query_offsets[b]), queries(s.query_offsets[b + 1] - query_start),
          key_start(s.key_offsets[b]), keys(s.key_offsets[b + 1] - key_start),
          ahead(keys - queries), shape(s) {}

    // The queries from `start` on that make a piece, and the keys that they see.
    Sequence piece(long start) const {
        Sequence part = *this;
        if (shape.window < 0) return part;
        part.queries = std::min(PIECE, queries - start);
        long first = run(start).first;
        part.keys = run(start + part.queries - 1).last + 1 - first;
        part.query_start += start;
        part.key_start += first;
        part.ahead += start - first;
        return part;
    }

    // The keys that a query sees: Visibility.runs of attention.py.
    Run run(long query) const {
        if (!shape.causal && shape.window < 0) return {0, keys - 1};
        long position = query + ahead;
        long reach = shape.window < 0 ? keys : shape.window;
        return {std::max(0L, position - reach),
                shape.causal ? position : std::min(position + reach, keys - 1)};
    }
};

// result[ROWS, COLUMNS registers] (+)= left[ROWS, depth] right[depth, COLUMNS registers]
template <class C, int ROWS, int COLUMNS>
inline void tile(const C* left, long left_row, long left_column, const C* right, long right_row,
                 C* result, long result_row, long depth, bool add) {
    VectorOf<C> sums[ROWS][COLUMNS] = {};
    for (long k = 0; k < depth; k++)
        for (int c = 0; c < COLUMNS; c++) {
            VectorOf<C> b = load(right + k * right_row + c * LANES<C>);
            for (int r = 0; r < ROWS; r++)
                sums[r][c] += left[r * left_row + k * left_column] * b;
        }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            C* to = result + r * result_row + c * LANES<C>;
            store(to, add ? load(to) + sums[r][c] : sums[r][c]);
        }
}

template <class C, int ROWS>
void strips(long& row, long rows, long columns, const C* left, long left_row, long left_column,
            const C* right, long right_row, C* result, long result_row, long depth, bool add) {
    for (; row + ROWS <= rows; row += ROWS) {
        const C* a = left + row * left_row;
        C* to = result + row * result_row;
        long c = 0;
        for (; c + WIDE * LANES<C> <= columns; c += WIDE * LANES<C>)
            tile<C, ROWS, WIDE>(a, left_row, left_column, right + c, right_row, to + c, result_row,
                                depth, add);
        for (; c < columns; c += LANES<C>)
            tile<C, ROWS, 1>(a, left_row, left_column, right + c, right_row, to + c, result_row,
                             depth, add);
    }
}

// result[rows, columns] (+)= left[rows, depth] right[depth, columns]; columns fill registers.
template <class C>
void product(long rows, long columns, long depth, const C* left, long left_row, long left_column,
             const C* right, long right_row, C* result, long result_row, bool add) {
    long row = 0;
    auto with = [&](auto strip) {
        strip(row, rows, columns, left, left_row, left_column, right, right_row, result,
              result_row, depth, add);
    };
    with(strips<C, TALL>);
    with(strips<C, 4>);
    with(strips<C, 2>);
    with(strips<C, 1>);
}

// rows[count, size] with a stride -> to[count, width], padded with zeros.
template <class T, class C>
void copy_rows(const T* rows, long stride, long count, long size, C factor, C* to, long width) {
    for (long i = 0; i < count; i++)
        for (long k = 0; k < width; k += LANES<T>) {
            __builtin_prefetch(rows + i * stride + k + size);  // the next head
            store(to + i * width + k,
                  k < size ? load(rows + i * stride + k, size - k) * factor : VectorOf<T>{});
        }
}

// from[count, width] -> to[size, columns], transposed and padded with zeros.
template <class C>
void transpose(const C* from, long count, long width, long size, C* to, long columns) {
    for (long k = 0; k < size; k++) {
        for (long j = 0; j < count; j++) to[k * columns + j] = from[j * width + k];
        for (long j = count; j < columns; j++) to[k * columns + j] = 0;
    }
}

template <class T, class C>
void write_rows(const C* from, long width, long count, long size, C factor, T* to, long stride) {
    for (long i = 0; i < count; i++)
        for (long k = 0; k < size; k += LANES<T>)
            store(to + i * stride + k, load(from + i * width + k) * factor, size - k);
}

// A block of queries and the columns of keys that it needs: from `low` to `high`, whole registers.
struct Block {
    long start, rows, low, high;

    template <class C> static Block of(const Sequence& s, long start, C) {
        long rows = std::min(BLOCK, s.queries - start);
        long low = s.run(start).first / LANES<C> * LANES<C>;
        return {start, rows, low, rounded_up<C>(s.run(start + rows - 1).last + 1)};
    }
};

// The memory of one thread.
template <class C> struct Workspace {
    long width, columns;  // of the rows of one head, of the scores
    std::vector<C> memory;
    C* next;

    Workspace(const Shape& s, long rectangles) : width(rounded_up<C>(s.size)) {
        long keys = 0;
        for (long b = 0; b < s.sequences; b++)
            keys = std::max<long>(keys, s.key_offsets[b + 1] - s.key_offsets[b]);
        if (s.window >= 0) keys = std::min(keys, PIECE + 2 * s.window);
        columns = rounded_up<C>(keys);
        memory.resize(rectangles * columns * width + 3 * BLOCK * width + 2 * BLOCK * columns);
        next = memory.data();
    }
    C* allocate(long size) { return (next += size) - size; }
};

// The scaled dot products of a block of queries; -infinity for keys that are not visible.
template <class C>
void score(const Sequence& s, const Block& block, const C* query, long width,
           const C* transposed_key, long columns, C* scores) {
    product(block.rows, block.high - block.low, s.shape.size, query, width, 1L,
            transposed_key + block.low, columns, scores + block.low, columns, false);
    for (long i = 0; i < block.rows; i++) {
        Run run = s.run(block.start + i);
        C* row = scores + i * columns;
        for (long j = block.low; j < run.first; j++) row[j] = -INFINITY;
        for (long j = run.last + 1; j < block.high; j++) row[j] = -INFINITY;
    }
}

template <class T>
void forward(const Shape& shape, const T* query, const T* key, const T* value, T* output,
             NumberOf<T>* totals) {
    typedef NumberOf<T> C;
    const long H = shape.heads, size = shape.size;
    const C scale = 1 / std::sqrt(C(size));
#pragma omp parallel
    {
        Workspace<C> workspace(shape, 3);
        const long width = workspace.width;
        const long rectangle = workspace.columns * width;
        C *keys = workspace.allocate(rectangle), *values = workspace.allocate(rectangle);
        C *transposed = workspace.allocate(rectangle), *queries = workspace.allocate(BLOCK * width);
        C* outputs = workspace.allocate(BLOCK * width);
        C* scores = workspace.allocate(BLOCK * workspace.columns);
#pragma omp for schedule(dynamic)
        for (long unit = 0; unit < shape.sequences * H; unit++) {
            const Sequence whole(shape, unit / H);
            for (long done = 0; done < whole.queries;) {
                const Sequence s = whole.piece(done);
                done += s.queries;
                const long head = unit % H * size, columns = rounded_up<C>(s.keys);
                copy_rows(key + s.key_start * shape.key_stride + head, shape.key_stride, s.keys,
                          size, C(1), keys, width);
                transpose(keys, s.keys, width, size, transposed, columns);
                copy_rows(value + s.key_start * shape.value_stride + head, shape.value_stride,
                          s.keys, size, C(1), values, width);
                for (long start = 0; start < s.queries; start += BLOCK) {
                    const Block block = Block::of(s, start, C());
                    const long first = s.query_start + start;
                    copy_rows(query + first * shape.query_stride + head, shape.query_stride,
                              block.rows, size, scale, queries, width);
                    score(s, block, queries, width, transposed, columns, scores);
                    C inverses[BLOCK];
                    for (long i = 0; i < block.rows; i++) {
                        C* row = scores + i * columns;
                        VectorOf<C> maxima = load(row + block.low), sum = {};
                        for (long j = block.low; j < block.high; j += LANES<C>) {
                            VectorOf<C> x = load(row + j);
                            maxima = x > maxima ? x : maxima;
                        }
                        const C largest = largest_of(maxima);
                        for (long j = block.low; j < block.high; j += LANES<C>) {
                            VectorOf<C> x = exponential(load(row + j) - largest);
                            store(row + j, x);
                            sum += x;
                        }
                        const C total = sum_of(sum);
                        inverses[i] = 1 / total;
                        totals[(first + i) * H + unit % H] = largest + std::log(total);
                    }
                    const long high = std::min(block.high, s.keys);
                    product(block.rows, width, high - block.low, scores + block.low, columns, 1L,
                            values + block.low * width, width, outputs, width, false);
                    for (long i = 0; i < block.rows; i++)
                        write_rows(outputs + i * width, width, 1, size, inverses[i],
                                   output + (first + i) * H * size + head, H * size);
                }
            }
        }
    }
}

// `to` has the strides of the gradients that are written.
template <class T>
void backward(const Shape& shape, const Shape& to, const T* query, const T* key, const T* value,
              const T* output, const NumberOf<T>* totals, const T* grad, T* query_grad,
              T* key_grad, T* value_grad) {
    typedef NumberOf<T> C;
    const long H = shape.heads, size = shape.size;
    const C scale = 1 / std::sqrt(C(size));
#pragma omp parallel
    {
        Workspace<C> workspace(shape, 3);
        const long width = workspace.width, rectangle = workspace.columns * width;
        C *keys = workspace.allocate(rectangle), *transposed_key = workspace.allocate(rectangle);
        C *transposed_value = workspace.allocate(rectangle);
        std::vector<C> key_sums, value_sums;
        C *queries = workspace.allocate(BLOCK * width), *grads = workspace.allocate(BLOCK * width);
        C* results = workspace.allocate(BLOCK * width);
        C* weights = workspace.allocate(BLOCK * workspace.columns);
        C* products = workspace.allocate(BLOCK * workspace.columns);
#pragma omp for schedule(dynamic)
        for (long unit = 0; unit < shape.sequences * H; unit++) {
            const Sequence whole(shape, unit / H);
            const long head = unit % H * size;
            key_sums.assign(whole.keys * width, C(0));
            value_sums.assign(whole.keys * width, C(0));
            for (long done = 0; done < whole.queries;) {
                const Sequence s = whole.piece(done);
                done += s.queries;
                const long columns = rounded_up<C>(s.keys);
                C* key_sum = key_sums.data() + (s.key_start - whole.key_start) * width;
                C* value_sum = value_sums.data() + (s.key_start - whole.key_start) * width;
                copy_rows(value + s.key_start * shape.value_stride + head, shape.value_stride,
                          s.keys, size, C(1), keys, width);
                transpose(keys, s.keys, width, size, transposed_value, columns);
                copy_rows(key + s.key_start * shape.key_stride + head, shape.key_stride, s.keys,
                          size, C(1), keys, width);
                transpose(keys, s.keys, width, size, transposed_key, columns);
                for (long start = 0; start < s.queries; start += BLOCK) {
                    const Block block = Block::of(s, start, C());
                    const long first = s.query_start + start;
                    copy_rows(query + first * shape.query_stride + head, shape.query_stride,
                              block.rows, size, scale, queries, width);
                    copy_rows(grad + first * H * size + head, H * size, block.rows, size, C(1),
                              grads, width);
                    copy_rows(output + first * H * size + head, H * size, block.rows, size, C(1),
                              results, width);
                    score(s, block, queries, width, transposed_key, columns, weights);
                    product(block.rows, block.high - block.low, size, grads, width, 1L,
                            transposed_value + block.low, columns, products + block.low, columns,
                            false);
                    for (long i = 0; i < block.rows; i++) {
                        // Recompute the weights; the gradient of the scores is
                        // weight (product - their mean).
                        VectorOf<C> mean = {};
                        for (long k = 0; k < width; k += LANES<C>)
                            mean += load(grads + i * width + k) * load(results + i * width + k);
                        const C average = sum_of(mean), total = totals[(first + i) * H + unit % H];
                        C *weight = weights + i * columns, *change = products + i * columns;
                        for (long j = block.low; j < block.high; j += LANES<C>) {
                            VectorOf<C> x = exponential(load(weight + j) - total);
                            store(weight + j, x);
                            store(change + j, x * (load(change + j) - average));
                        }
                    }
                    const long high = std::min(block.high, s.keys), seen = high - block.low;
                    product(block.rows, width, seen, products + block.low, columns, 1L,
                            keys + block.low * width, width, results, width, false);
                    write_rows(results, width, block.rows, size, scale,
                               query_grad + first * to.query_stride + head, to.query_stride);
                    product(seen, width, block.rows, products + block.low, 1L, columns, queries,
                            width, key_sum + block.low * width, width, true);
                    product(seen, width, block.rows, weights + block.low, 1L, columns, grads,
                            width, value_sum + block.low * width, width, true);
                }
            }
            write_rows(key_sums.data(), width, whole.keys, size, C(1),
                       key_grad + whole.key_start * to.key_stride + head, to.key_stride);
            write_rows(value_sums.data(), width, whole.keys, size, C(1),
                       value_grad + whole.key_start * to.value_stride + head, to.value_stride);
        }
    }
}

}  // namespace

#define FOR_TYPE(NAME, T)                                                                          \
    extern "C" void attend_##NAME(const Shape* shape, const T* query, const T* key,                \
                                  const T* value, T* output, NumberOf<T>* totals) {                \
        forward(*shape, query, key, value, output, totals);                                        \
    }                                                                                              \
    extern "C" void attend_backward_##NAME(const Shape* shape, const Shape* to, const T* query,    \
                                           const T* key, const T* value, const T* output,          \
                                           const NumberOf<T>* totals, const T* grad,               \
                                           T* query_grad, T* key_grad, T* value_grad) {            \
        backward(*shape, *to, query, key, value, output, totals, grad, query_grad, key_grad,       \
                 value_grad);                                                                      \
    }
FOR_TYPE(bfloat16, BFloat16)
FOR_TYPE(float32, float)
FOR_TYPE(float64, double)
