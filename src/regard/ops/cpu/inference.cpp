// The specification is Transformer.step and Stack in model/transformer.py, with decoding/beams.py:
// one call runs a decoding step with its search, or a full pass of a stack over packed rows.
//
// Each stage (a product, attention, add & norm) is split among the threads (team.h), without calls
// of Python in between.
#include <omp.h>

#include "sample.h"

// The tensors of model/cache.py.
struct Cache {
    int64_t sentences, width, slots, used, window;  // window: 0 for none
    uint8_t* visible;  // [B, W, slots]
    int64_t *positions, *slot_positions, *next;  // [B], [B, slots], [W]
    const Slots *own, *memory;  // of each layer; memory may be null
    const int64_t* memory_lengths;  // [B]
};

static thread_local Workspace stage_workspace, row_workspace;
static thread_local SampleMemory sample_memory;

// Runs `run_stages` in all threads; `stages` is an upper bound of the number of stages.
template <class F> static void run_team(long threads, long stages, const F& run_stages) {
    std::vector<Counter> counters(Team::counters_for(stages, threads));
#pragma omp parallel num_threads(threads)
    {
        Team team = {counters, omp_get_thread_num(), omp_get_num_threads()};
        run_stages(team);
    }
}
static long stages_of(const Stack& stack) { return 24 * (stack.layers + 1); }

// A search: its cache and hypotheses. One call can run a step of several searches.
struct Search {
    Cache cache;
    Beams beams;
    int64_t unfinished;  // sentences; written by a step
};

// One sentence in a step.
struct Turn {
    const Search* search;
    long index, first;  // in its search; the first of its rows
    int32_t* numbers;  // slots that its hypotheses see: [W, end]
    int32_t* forbidden;  // tokens: [W, most_forbidden]
    long most_forbidden;
    Best* best;  // candidates: [W, pieces, C], then [C]; of sampling: [W]
};

// Tables of the rows of a call.
struct RowTables {
    int64_t *first, *tokens;  // [B+1], [N]
    int32_t *position, *slot, *parent, *numbers;  // [N] each, and slot numbers
    Seen* seen;  // [N]
    Sentence* sentence;  // [B]
    Turn* turn;  // [B]
    int32_t *turn_of, *forbidden_count;  // [N]
    Piece* pieces;
    Best* best;

    RowTables(Workspace& workspace, long rows, long sentences, long numbers_count,
              long pieces_count = 0, long best_count = 0) {
        workspace.fill([&] {
            first = workspace.allocate<int64_t>(sentences + 1);
            tokens = workspace.allocate<int64_t>(rows);
            position = workspace.allocate<int32_t>(rows);
            slot = workspace.allocate<int32_t>(rows);
            parent = workspace.allocate<int32_t>(rows);
            numbers = workspace.allocate<int32_t>(numbers_count);
            seen = workspace.allocate<Seen>(rows);
            sentence = workspace.allocate<Sentence>(sentences);
            turn = workspace.allocate<Turn>(sentences);
            turn_of = workspace.allocate<int32_t>(rows);
            forbidden_count = workspace.allocate<int32_t>(rows);
            pieces = workspace.allocate<Piece>(pieces_count);
            best = workspace.allocate<Best>(best_count);
        });
    }
};

// Each hypothesis sees the slots of its parent and one new slot. Recurrent layers have no slots,
// only a state for each hypothesis.
static void move_hypotheses(const Turn& turn, RowTables& t, bool recurrent) {
    const Cache& cache = turn.search->cache;
    const Beams& beams = turn.search->beams;
    long width = cache.width, end = cache.used + width, b = turn.index;
    long now = cache.positions[b]++;
    for (long w = 0; w < width; w++) {
        long r = turn.first + w;
        t.tokens[r] = beams.tokens[b * width + w];
        t.parent[r] = beams.move ? beams.parents[b * width + w] : w;
        t.position[r] = now, t.slot[r] = recurrent ? w : cache.used + w;
    }
    if (recurrent) return;
    uint8_t* visible = cache.visible + b * width * cache.slots;
    for (long w = 0; w < width; w++)
        if (cache.window) cache.slot_positions[b * cache.slots + cache.used + w] = now;
    for (long w = 0; w < width; w++) {  // read all rows before any is changed
        long r = turn.first + w, count = 0;
        int32_t* numbers = turn.numbers + w * end;
        for (long s = 0; s < cache.used; s++)
            if (visible[t.parent[r] * cache.slots + s]) numbers[count++] = s;
        numbers[count++] = cache.used + w;
        t.seen[r] = {numbers, count};
    }
    for (long w = 0; w < width; w++) {
        Seen& seen = t.seen[turn.first + w];
        memset(visible + w * cache.slots, 0, end);
        for (long i = 0; i < seen.count; i++) visible[w * cache.slots + seen.slots[i]] = 1;
        if (!cache.window) continue;
        long count = 0;  // slots beyond the window stay in `visible`, but are not read
        int32_t* read = turn.numbers + w * end;
        for (long i = 0; i < seen.count; i++)
            if (now - cache.slot_positions[b * cache.slots + read[i]] <= cache.window)
                read[count++] = read[i];
        seen.count = count;
    }
}

extern "C" {

int64_t block_size() { return BLOCK; }

int64_t words_in(int64_t kind, int64_t columns) { return words_of(Kind(kind), columns); }

void pack_matrix(int64_t kind, const float* weight, int64_t outputs, int64_t inputs,
                 uint32_t* tiles, int32_t* start) {
    to_blocks(Kind(kind), weight, outputs, inputs, tiles, start);
}

// A hash of samples from all parts of the tensors, which changes when training changes them.
uint64_t fingerprint(const uint8_t* const* tensors, const int64_t* bytes, int64_t count) {
    uint64_t hash = 14695981039346656037u;
    for (long i = 0; i < count; i++)
        for (long at = 0; at + 8 <= bytes[i]; at += std::max<long>(8, bytes[i] / 16 / 8 * 8)) {
            uint64_t part;
            memcpy(&part, tensors[i] + at, 8);
            hash = (hash ^ part) * 1099511628211u;
        }
    return hash;
}

// tokens[N] in `sentences` sequences -> hidden[N, D] (or null). `where`: the keys and values of each
// sequence, or null if the caller does not need them; memory as in a step.
void read_rows(const Stack* stack, const int64_t* tokens, const int64_t* offsets,
               int64_t sentences, int64_t causal, int64_t window, const Sentence* where,
               float* hidden, int64_t threads) {
    long rows = offsets[sentences], longest = 0, max_slots, size = stack->head_size;
    for (long b = 0; b < sentences; b++) longest = std::max(longest, offsets[b + 1] - offsets[b]);
    max_slots = longest;
    for (long b = 0; b < sentences && where; b++)
        max_slots = std::max<long>(max_slots, where[b].memory_length);
    RowTables t(row_workspace, rows, sentences, max_slots);
    for (long i = 0; i < max_slots; i++) t.numbers[i] = i;
    for (long b = 0; b < sentences; b++) {
        long length = offsets[b + 1] - offsets[b];
        for (long i = 0; i < length; i++) {
            long from = window ? std::max<long>(0, i - window) : 0;
            long to = causal ? i : window ? std::min(length - 1, i + window) : length - 1;
            t.seen[offsets[b] + i] = {t.numbers + from, to - from + 1};
            t.position[offsets[b] + i] = t.slot[offsets[b] + i] = i;
        }
    }
    // If the caller does not need keys and values, all layers use the same memory for them.
    std::vector<float> storage;
    std::vector<Slots> shared_slots;
    if (!where) {
        long sentence = stack->recurrent ? 0 : stack->key_value_heads * longest * size;
        storage.resize(2 * sentences * sentence);
        float* values = storage.data() + sentences * sentence;
        shared_slots.assign(stack->layers,
                            {storage.data(), values, sentence, longest * size, size});
        for (long b = 0; b < sentences; b++)
            t.sentence[b] = {shared_slots.data(), nullptr, b, 0};
        where = t.sentence;
    }
    Rows all = {rows, sentences, tokens, offsets, t.position, t.slot, t.parent,
                t.seen, where, t.numbers, longest};
    Buffers b(stage_workspace, *stack, rows, max_slots, longest, threads);
    run_team(threads, stages_of(*stack), [&](Team& team) { run_layers(team, *stack, all, b); });
    if (hidden) memcpy(hidden, b.normed, rows * stack->d_model * 4);
}

// memory[M, D] -> keys and values of every layer of the decoder.
void project_memory(const Stack* stack, const float* memory, const int64_t* offsets,
                    int64_t sentences, const Sentence* where, int64_t threads) {
    long rows = offsets[sentences], size = stack->head_size;
    long width = stack->key_value_heads * size;
    Buffers b(stage_workspace, *stack, rows, 0, 0, threads);
    run_team(threads, stages_of(*stack), [&](Team& team) {
        for (long i = 0; i < stack->layers; i++) {
            product(team, Kind(stack->kind), stack->layer[i].key_value, memory, stack->d_model,
                    rows, b.own[team.id].prepared, b.shared, b.y, b.widest);
            team.each(sentences, [&](long s) {
                const Slots& slots = where[s].memory[i];
                for (long r = offsets[s]; r < offsets[s + 1]; r++)
                    for (long h = 0; h < stack->key_value_heads; h++) {
                        const float* key = b.y + r * b.widest + h * size;
                        long at = slots.at(where[s].index, h);
                        at += (r - offsets[s]) * slots.slot_stride;
                        memcpy(slots.keys + at, key, size * 4);
                        memcpy(slots.values + at, key + width, size * 4);
                    }
            });
        }
    });
}

// hidden[N, D] -> logits[N, stride].
void project_output(const Stack* stack, const float* hidden, int64_t rows, float* logits,
                    int64_t stride, int64_t threads) {
    Buffers b(stage_workspace, *stack, rows, 0, 0, threads);
    run_team(threads, stages_of(*stack), [&](Team& team) {
        product(team, Kind(stack->kind), stack->output, hidden, stack->d_model, rows,
                b.own[team.id].prepared, b.shared, logits, stride);
    });
}

// Runs one step of `count` searches; logits[N, stride] is memory for those of the next token of each
// hypothesis, in the order of the searches. Returns the number of unfinished sentences of all
// searches.
int64_t step(const Stack* stack, Search* const* searches, int64_t count, float* logits,
             int64_t stride, int64_t threads) {
    long vocabulary = stack->output.outputs, pieces = (vocabulary + PIECE - 1) / PIECE;
    long rows = 0, sentences = 0, numbers = 0, best = 0, max_slots = 0, memory_longest = 0;
    bool sampling = false;
    auto most_forbidden = [](const Beams& beams) {
        return 1 + (beams.no_repeat ? beams.prefix + *beams.time : 0);
    };
    auto best_of = [&](const Search& search) {  // of one sentence
        long width = search.cache.width;
        return search.beams.temperature ? width : (width * pieces + 1) * search.beams.candidates;
    };
    for (long i = 0; i < count; i++) {
        const Cache& cache = searches[i]->cache;
        long search_rows = cache.sentences * cache.width, end = cache.used + cache.width;
        rows += search_rows, sentences += cache.sentences;
        numbers += search_rows * (end + most_forbidden(searches[i]->beams));
        max_slots = std::max(max_slots, end);
        best += cache.sentences * best_of(*searches[i]);
        sampling |= searches[i]->beams.temperature > 0;
        for (long b = 0; b < cache.sentences && cache.memory; b++)
            memory_longest = std::max<long>(memory_longest, cache.memory_lengths[b]);
    }
    RowTables t(row_workspace, rows, sentences, numbers + memory_longest, rows * pieces, best);
    int32_t* next_numbers = t.numbers + memory_longest;
    for (long i = 0; i < memory_longest; i++) t.numbers[i] = i;
    long s = 0, r = 0;
    Best* next_best = t.best;
    for (long i = 0; i < count; i++) {
        const Cache& cache = searches[i]->cache;
        long width = cache.width, seen = width * (cache.used + width);
        long most = most_forbidden(searches[i]->beams);
        for (long b = 0; b < cache.sentences; b++, s++, r += width) {
            t.first[s] = r;
            t.sentence[s] = {cache.own, cache.memory, b,
                             cache.memory ? cache.memory_lengths[b] : 0};
            t.turn[s] = {searches[i], b, r, next_numbers, next_numbers + seen, most, next_best};
            std::fill(t.turn_of + r, t.turn_of + r + width, s);
            next_numbers += seen + width * most;
            next_best += best_of(*searches[i]);
        }
    }
    t.first[sentences] = rows;
    Rows all = {rows, sentences, t.tokens, t.first, t.position, t.slot, t.parent,
                t.seen, t.sentence, t.numbers, 0};
    Buffers b(stage_workspace, *stack, rows, std::max(max_slots, memory_longest), 0, threads);
    run_team(threads, stages_of(*stack), [&](Team& team) {
        team.each(sentences, [&](long s) {
            const Turn& turn = t.turn[s];
            const Beams& beams = turn.search->beams;
            long width = turn.search->cache.width;
            move_hypotheses(turn, t, stack->recurrent);
            for (long w = 0; w < width; w++)
                t.forbidden_count[turn.first + w] =
                    forbid(beams, turn.index, turn.index * width + w,
                           turn.forbidden + w * turn.most_forbidden);
        });
        run_layers(team, *stack, all, b);
        product(team, Kind(stack->kind), stack->output, b.normed, stack->d_model, rows,
                b.own[team.id].prepared, b.shared, logits, stride);
        team.each(rows * pieces, [&](long piece) {
            long r = piece / pieces, part = piece % pieces, start = part * PIECE;
            const Turn& turn = t.turn[t.turn_of[r]];
            const Beams& beams = turn.search->beams;
            long w = r - turn.first, capacity = beams.temperature ? 0 : beams.candidates;
            t.pieces[piece] = scan_logits(
                logits + r * stride + start, start, std::min(PIECE, vocabulary - start),
                turn.forbidden + w * turn.most_forbidden, t.forbidden_count[r], capacity,
                turn.best + (w * pieces + part) * capacity);
        });
        if (sampling)
            team.each(rows, [&](long r) {
                const Turn& turn = t.turn[t.turn_of[r]];
                const Beams& beams = turn.search->beams;
                long w = r - turn.first, row = turn.index * turn.search->cache.width + w;
                if (!beams.temperature) return;
                turn.best[w] = {-INFINITY, -INFINITY, 0, 0};
                if (beams.scores[row] == -INFINITY) return;
                double noise = beams.noise[row * beams.steps + *beams.time];
                turn.best[w] = draw(beams, logits + r * stride, vocabulary, t.pieces + r * pieces,
                                    pieces, noise, turn.forbidden + w * turn.most_forbidden,
                                    t.forbidden_count[r], sample_memory);
            });
        team.each(sentences, [&](long s) {
            const Turn& turn = t.turn[s];
            const Beams& beams = turn.search->beams;
            long width = turn.search->cache.width;
            if (beams.temperature)
                extend_samples(beams, turn.index, width, turn.best);
            else
                extend_hypotheses(beams, turn.index, width, pieces, t.pieces + turn.first * pieces,
                                  turn.best, turn.best + width * pieces * beams.candidates);
            if (beams.no_repeat) extend_sequences(beams, turn.index, width);
        });
    });
    long unfinished = 0;
    for (long i = 0; i < count; i++) {
        Search& search = *searches[i];
        Cache& cache = search.cache;
        for (long w = 0; w < cache.width; w++) cache.next[w] += cache.width;
        cache.used += cache.width;
        ++*search.beams.time;
        search.unfinished = 0;
        for (long b = 0; b < cache.sentences; b++) search.unfinished += !search.beams.done[b];
        unfinished += search.unfinished;
    }
    return unfinished;
}
}
