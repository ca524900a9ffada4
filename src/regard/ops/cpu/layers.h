// The specification is model/block.py, whose names are used here: the layers of a stack over rows.
// One pass serves an encoder, a decoder that reads a prompt, and a step. They differ in the slots
// that a row's keys and values go to and in the slots that it sees.
#pragma once

#include <vector>

#include "attention.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
constexpr size_t GAP = 64;  // poisoned bytes after each piece of a Workspace
#else
constexpr size_t GAP = 0;
#define ASAN_POISON_MEMORY_REGION(start, size)
#define ASAN_UNPOISON_MEMORY_REGION(start, size)
#endif

struct Norm {
    const float *gain, *shift;  // no gain: no norm; no shift: RMSNorm
};

struct Layer {
    Norm self_norm;
    Matrix query_key_value, self_output;  // with SSRU: its two matrices; self_output is unused
    Norm cross_norm;
    Matrix query, key_value, cross_output;  // key_value: of the memory
    Norm feed_norm;
    Matrix inner, outer;
};

struct Stack {
    int64_t kind, activation, norm_first, heads, key_value_heads, head_size, d_model, layers;
    int64_t embeddings_are_bfloat16, recurrent;  // recurrent: SSRU instead of self-attention
    double scale, epsilon;  // of embeddings; of norms
    const void* embeddings;  // [V, D], float or bfloat16
    const float* position_rows;  // [positions, D]: added to the embeddings; or null
    const float* rotation;  // [positions, K]: rotary cosines and sines, alternating; or null
    int64_t positions;  // rows of `position_rows` or `rotation`
    Norm embedding_norm, final_norm;
    const Layer* layer;
    Matrix output;  // [V, D], of a decoder
};

// Where the keys and values of one sentence are. The sentences of a call may belong to several
// caches.
struct Sentence {
    const Slots *own, *memory;  // of each layer; memory may be null, for all sentences. Of an SSRU,
                                // the slots of `own` are the states of the hypotheses
    int64_t index;  // in these slots
    int64_t memory_length;
};

// N rows; the rows of a sentence are adjacent.
struct Rows {
    long count, sentences;
    const int64_t *tokens, *first;  // [N]; [B+1]: the first row of each sentence
    const int32_t *position, *slot, *parent;  // [N]; parent: hypothesis, in a decoding step
    const Seen* seen;  // [N]
    const Sentence* sentence;  // [B]
    const int32_t* slot_numbers;  // 0, 1, ... up to the longest memory
    long longest;  // rows of the longest sentence of a full pass; 0: a decoding step
};

// Memory for the numbers between two stages, reused by later calls.
struct Workspace {
    std::vector<char> memory;
    size_t used = 0;

    // Calls take_pieces twice: once to measure the size, once with enough memory for all pieces.
    template <class F> void fill(const F& allocate_pieces) {
        for (int pass = 0; pass < 2; pass++) {
            used = 0;
            ASAN_UNPOISON_MEMORY_REGION(memory.data(), memory.size());
            allocate_pieces();
            ASAN_UNPOISON_MEMORY_REGION(memory.data(), pass ? 0 : memory.size());
            if (memory.size() < used + 64) memory.resize(used + 64);
        }
    }

    template <class T> T* allocate(long count) {
        size_t start = used, size = count * sizeof(T), whole = (size + 63) / 64 * 64;
        used += whole + GAP;
        char* piece = memory.data() + (64 - size_t(memory.data()) % 64) % 64 + start;
        if (GAP && used + 64 <= memory.size())
            ASAN_POISON_MEMORY_REGION(piece + size, whole - size + GAP);
        return (T*)piece;
    }
};

struct Buffers {
    float *x, *normed, *y, *z;  // [N, D], [N, D], [N, widest], [N, H K]
    float* added;  // [N, D padded]: the output of a sub-layer
    long widest;  // the largest number of outputs of a product, padded
    long padded_width;  // D padded
    Prepared shared;
    struct Own {
        Prepared prepared;
        float *scores, *sequence;
    };
    std::vector<Own> own;  // of each thread

    Buffers(Workspace& workspace, const Stack& stack, long rows, long max_slots, long longest,
            long threads) {
        long width = stack.heads * stack.head_size;
        const Layer& layer = stack.layer[0];
        padded_width = padded(stack.d_model);
        widest = padded(std::max({stack.d_model, layer.query_key_value.outputs, layer.query.outputs,
                                  layer.key_value.outputs, layer.inner.outputs}));
        own.resize(threads);
        workspace.fill([&] {
            x = workspace.allocate<float>(rows * stack.d_model + WIDTH);
            normed = workspace.allocate<float>(stack.norm_first ? rows * stack.d_model + WIDTH : 0);
            if (!stack.norm_first) normed = x;
            y = workspace.allocate<float>(rows * widest);
            z = workspace.allocate<float>(rows * width + WIDTH);
            added = workspace.allocate<float>(rows * padded_width);
            shared = {workspace.allocate<int32_t>(rows * widest), workspace.allocate<float>(rows)};
            for (Own& buffers : own)
                buffers = {{workspace.allocate<int32_t>(TILE * widest),
                            workspace.allocate<float>(TILE)},
                           workspace.allocate<float>(QUERIES * rounded_up<float>(max_slots)),
                           workspace.allocate<float>(Sequence::floats(longest, stack.head_size))};
        });
    }
};

// x += y and out = norm(x); y may be null.
inline void add_and_norm(const Norm& norm, float* x, const float* y, float* out, long size,
                         float epsilon) {
    Floats total = {};
    for (long i = 0; i < size; i += WIDTH) {
        Floats sum = load(x + i, size - i);
        if (y) store(x + i, sum += load(y + i, size - i), size - i);
        total += sum;
    }
    if (!norm.gain) return;
    float mean = norm.shift ? sum_across(total) / size : 0;
    Floats squares = {};
    for (long i = 0; i < size; i += WIDTH) {
        float part[WIDTH] = {};
        if (size - i < WIDTH) {
            for (long j = 0; j < size - i; j++) part[j] = x[i + j] - mean;
            squares += load(part) * load(part);
        } else {
            Floats off = load(x + i) - mean;
            squares += off * off;
        }
    }
    float factor = 1 / std::sqrt(sum_across(squares) / size + epsilon);
    for (long i = 0; i < size; i += WIDTH) {
        Floats result = (load(x + i, size - i) - mean) * factor * load(norm.gain + i, size - i);
        if (norm.shift) result += load(norm.shift + i, size - i);
        store(out + i, result, size - i);
    }
}

inline void embed(const Stack& stack, const Rows& rows, long r, float* x) {
    long size = stack.d_model, position = std::min<long>(rows.position[r], stack.positions - 1);
    for (long i = 0; i < size; i += WIDTH) {
        long at = rows.tokens[r] * size + i;
        Floats part = stack.embeddings_are_bfloat16
                          ? load((const BFloat16*)stack.embeddings + at, size - i)
                          : load((const float*)stack.embeddings + at, size - i);
        part *= float(stack.scale);
        if (stack.position_rows) part += load(stack.position_rows + position * size + i, size - i);
        store(x + i, part, size - i);
    }
    add_and_norm(stack.embedding_norm, x, nullptr, x, size, stack.epsilon);
}

// Attention of all heads: y[N, (H + 2 G) K] -> z[N, H K]. A piece of work is a sentence and one of
// the G heads of keys and values, with the queries that share it.
inline void attend_self(Team& team, const Stack& stack, const Rows& rows, long layer, Buffers& b) {
    long size = stack.head_size, width = stack.heads * size, shared = stack.key_value_heads;
    long group = stack.heads / shared * size;  // numbers of the queries of a piece
    team.each(rows.sentences * shared, [&](long piece) {
        long sentence = piece / shared, head = piece % shared;
        const Slots& slots = rows.sentence[sentence].own[layer];
        const float* queries[QUERIES];
        float* outs[QUERIES];
        long at = slots.at(rows.sentence[sentence].index, head);
        for (long r = rows.first[sentence]; r < rows.first[sentence + 1]; r++) {
            float *query = b.y + r * b.widest + head * group;
            float* key = b.y + r * b.widest + width + head * size;
            if (stack.rotation) {
                const float* rotation = stack.rotation + rows.position[r] * size;
                for (long k = 0; k < group; k += size) rotate(rotation, query + k, size);
                rotate(rotation, key, size);
            }
            long slot = at + rows.slot[r] * slots.slot_stride;
            memcpy(slots.keys + slot, key, size * 4);
            memcpy(slots.values + slot, key + shared * size, size * 4);
        }
        long start = rows.first[sentence], end = rows.first[sentence + 1];
        if (rows.longest && end - start >= MANY)
            return attend_all(b.y + start * b.widest + head * group, b.widest, end - start, group,
                              slots, at, rows.seen + start, size, b.own[team.id].sequence,
                              b.z + start * width + head * group, width);
        for (long r = start; r < end; r++)
            for (long k = head * group; k < (head + 1) * group;) {
                long count = 0;
                for (; count < QUERIES && k < (head + 1) * group; count++, k += size) {
                    queries[count] = b.y + r * b.widest + k;
                    outs[count] = b.z + r * width + k;
                }
                attend(count, queries, slots, at, rows.seen[r], size, b.own[team.id].scores, outs);
            }
    });
}

inline void attend_memory(Team& team, const Stack& stack, const Rows& rows, long layer,
                          Buffers& b) {
    long size = stack.head_size, width = stack.heads * size;
    long group = stack.heads / stack.key_value_heads;
    team.each(rows.sentences * stack.heads, [&](long piece) {
        long sentence = piece / stack.heads, head = piece % stack.heads;
        const Sentence& owner = rows.sentence[sentence];
        const Slots& slots = owner.memory[layer];
        Seen seen = {rows.slot_numbers, owner.memory_length};
        long at = slots.at(owner.index, head / group);
        for (long r = rows.first[sentence], end = rows.first[sentence + 1]; r < end;) {
            const float* queries[QUERIES];
            float* outs[QUERIES];
            long count = 0;
            for (; count < QUERIES && r < end; count++, r++) {
                queries[count] = b.y + r * b.widest + head * size;
                outs[count] = b.z + r * width + head * size;
            }
            attend(count, queries, slots, at, seen, size, b.own[team.id].scores, outs);
        }
    });
}

// The recurrence of model/ssru.py: y[N, 2 D], input and forget gate -> added[N, D].
inline void recur(Team& team, const Stack& stack, const Rows& rows, long layer, Buffers& b) {
    long size = stack.d_model;
    team.each(rows.sentences, [&](long sentence) {
        const Slots& states = rows.sentence[sentence].own[layer];
        long at = states.at(rows.sentence[sentence].index, 0);
        long start = rows.first[sentence], end = rows.first[sentence + 1];
        for (long r = start; r < end; r++) {  // the new states replace the inputs
            float* y = b.y + r * b.widest;
            bool first = rows.longest && r == start;
            const float* before = !rows.longest ? states.keys + at + rows.parent[r] * size
                                  : first       ? nullptr
                                                : y - b.widest;
            for (long i = 0; i < size; i += WIDTH) {
                Floats forget = times_sigmoid(Floats{} + 1, load(y + size + i, size - i));
                Floats state = (1.0f - forget) * load(y + i, size - i);
                if (!first) state += forget * load(before + i, size - i);
                store(y + i, state, size - i);
            }
        }
        for (long r = start; r < end; r++) {
            const float* y = b.y + r * b.widest;
            float* added = b.added + r * b.padded_width;
            if (!rows.longest) memcpy(states.keys + at + rows.slot[r] * size, y, size * 4);
            for (long i = 0; i < size; i += WIDTH)
                store(added + i, activate(load(y + i, size - i), RELU), size - i);
        }
        if (rows.longest && states.keys)  // all hypotheses begin with the last state
            for (long i = 0; i < states.sentence_stride; i += size)
                memcpy(states.keys + at + i, b.y + (end - 1) * b.widest, size * 4);
    });
}

// Replaces the first half of y[N, 2 F], gate and x, by silu(gate) * x.
inline void gate(Team& team, long rows, long size, Buffers& b) {
    team.each(rows, [&](long r) {
        for (long i = 0; i < size; i += WIDTH) {
            float* y = b.y + r * b.widest + i;
            Floats x = load(y, size - i);
            store(y, times_sigmoid(x, x) * load(y + size, size - i), size - i);
        }
    });
}

// Runs all layers; the output of the last one is in `b.normed`, with the final norm of pre-norm.
inline void run_layers(Team& team, const Stack& stack, const Rows& rows, Buffers& b) {
    Kind kind = Kind(stack.kind);
    Activation activation = Activation(stack.activation);
    long n = rows.count, d_model = stack.d_model, width = stack.heads * stack.head_size;
    const Prepared& own = b.own[team.id].prepared;
    bool norm_first = stack.norm_first, cross = rows.sentence[0].memory;
    auto project_in = [&](const Matrix& matrix, Activation f = NONE) {
        product(team, kind, matrix, b.normed, d_model, n, own, b.shared, b.y, b.widest, f);
    };
    auto project_out = [&](const Matrix& matrix, const float* x, long stride) {
        product(team, kind, matrix, x, stride, n, own, b.shared, b.added, b.padded_width);
    };
    // After the sum, post-norm applies its own norm, pre-norm the norm of the next sub-layer.
    auto add = [&](const Norm& norm, const Norm& next) {
        team.each(n, [&](long r) {
            add_and_norm(norm_first ? next : norm, b.x + r * d_model, b.added + r * b.padded_width,
                         b.normed + r * d_model, d_model, stack.epsilon);
        });
    };
    team.each(n, [&](long r) {
        embed(stack, rows, r, b.x + r * d_model);
        if (norm_first)
            add_and_norm(stack.layer[0].self_norm, b.x + r * d_model, nullptr,
                         b.normed + r * d_model, d_model, stack.epsilon);
    });
    for (long i = 0; i < stack.layers; i++) {
        const Layer& layer = stack.layer[i];
        project_in(layer.query_key_value);
        if (stack.recurrent) {
            recur(team, stack, rows, i, b);
        } else {
            attend_self(team, stack, rows, i, b);
            project_out(layer.self_output, b.z, width);
        }
        add(layer.self_norm, cross ? layer.cross_norm : layer.feed_norm);
        if (cross) {
            project_in(layer.query);
            attend_memory(team, stack, rows, i, b);
            project_out(layer.cross_output, b.z, width);
            add(layer.cross_norm, layer.feed_norm);
        }
        project_in(layer.inner, activation);
        if (activation == SWIGLU) gate(team, n, layer.outer.inputs, b);
        project_out(layer.outer, b.y, b.widest);
        add(layer.feed_norm, i + 1 < stack.layers ? stack.layer[i + 1].self_norm : stack.final_norm);
    }
}
