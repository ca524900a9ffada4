// The specification is text/dropout.py: BPE-dropout of the rows of a batch.
//
// One thread processes a row, and all random numbers of a row depend on its key only: the tokens
// depend neither on the number of threads nor on other rows.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace {

constexpr uint64_t GAMMA = 0x9E3779B97F4A7C15;
constexpr uint32_t SPECIALS = 6;  // special tokens have lower ids; the 256 bytes come next
constexpr uint32_t NONE = UINT32_MAX;

// splitmix64's next number (Steele et al. 2014).
uint64_t scramble(uint64_t x) {
    x += GAMMA;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

// ---- the merges: a hash table, whose free slots have joined = 0 ---------------------------------

struct Merge {
    uint32_t left, right, rank, joined;
};

uint64_t slot_of(uint32_t left, uint32_t right, uint64_t mask) {
    return ((uint64_t(left) << 32 | right) * GAMMA >> 32) & mask;
}

const Merge* find(const Merge* slots, uint64_t mask, uint32_t left, uint32_t right) {
    for (uint64_t slot = slot_of(left, right, mask); slots[slot].joined; slot = (slot + 1) & mask)
        if (slots[slot].left == left && slots[slot].right == right) return &slots[slot];
    return nullptr;
}

// ---- words, as the byte-level splitting of the BPE library defines them -------------------------

enum Class : uint8_t { LETTER, NUMBER, OTHER, SPACE };

struct Text {
    std::string bytes;
    std::vector<uint8_t> classes;  // the class of the character that each byte is part of

    bool continues(long i) const { return (uint8_t(bytes[i]) & 0xC0) == 0x80; }

    void classify(const uint8_t* table, uint64_t table_size) {
        long size = bytes.size();
        classes.resize(size);
        for (long i = 0, end; i < size; i = end) {
            uint8_t lead = bytes[i];
            int bits = lead < 0x80 ? 7 : lead < 0xE0 ? 5 : lead < 0xF0 ? 4 : 3;
            uint64_t code = lead & ((1 << bits) - 1);
            for (end = i + 1; end < size && continues(end); end++)
                code = code << 6 | (uint8_t(bytes[end]) & 0x3F);
            uint8_t kind = code < table_size ? table[code] : uint8_t(OTHER);
            while (i < end) classes[i++] = kind;
        }
    }

    // '(s|t|re|ve|m|ll|d) | " "?letters | " "?numbers | " "?others | spaces; if a word
    // follows, without the last space.
    long word_end(long i) const {
        long size = bytes.size();
        if (bytes[i] == '\'')
            for (const char* ending : {"s", "t", "re", "ve", "m", "ll", "d"})
                if (!bytes.compare(i + 1, std::char_traits<char>::length(ending), ending))
                    return i + 1 + std::char_traits<char>::length(ending);
        long first = i + (bytes[i] == ' ' && i + 1 < size && classes[i + 1] != SPACE), end = first;
        while (end < size && classes[end] == classes[first]) end++;
        if (classes[first] != SPACE || end == size) return end;
        long last = end - 1;
        while (continues(last)) last--;
        return last > i ? last : end;
    }
};

// ---- merging ------------------------------------------------------------------------------------

struct Vocabulary {
    const Merge* slots;
    long size;
    const uint8_t* classes;
    uint64_t classes_size;
    const char* pieces;  // the concatenated bytes of all tokens
    const int64_t* pieces_start;  // [V + 1]

    const char* piece(uint32_t id) const { return pieces + pieces_start[id]; }
};

struct Work {
    const Merge* slots;
    uint64_t mask, threshold;  // a merge is dropped if its 53 random bits are below `threshold`
    uint64_t key;
    Text text;
    std::vector<uint32_t> tokens, ranks, joined;  // ranks, joined: for a token and its successor
    std::vector<long> before, after;
    std::vector<uint64_t> candidates, dropped;  // rank and index; candidates is a heap

    bool drop_next() {
        bool dropped = scramble(key) >> 11 < threshold;
        key += GAMMA;
        return dropped;
    }
    // Whether none of the next merges is dropped; otherwise the random state is restored.
    bool none_dropped(long merges) {
        uint64_t before = key;
        while (merges && !drop_next()) merges--;
        if (merges) key = before;
        return !merges;
    }
    void add(uint64_t candidate) {
        candidates.push_back(candidate);
        std::push_heap(candidates.begin(), candidates.end(), std::greater<>());
    }
    uint64_t take_first() {
        std::pop_heap(candidates.begin(), candidates.end(), std::greater<>());
        uint64_t first = candidates.back();
        candidates.pop_back();
        return first;
    }
    void propose(long left, long size) {
        if (left < 0) return;
        long right = after[left];
        ranks[left] = NONE;
        if (right >= size) return;
        const Merge* merge = find(slots, mask, tokens[left], tokens[right]);
        if (!merge) return;
        ranks[left] = merge->rank;
        joined[left] = merge->joined;
        add(uint64_t(merge->rank) << 32 | left);
    }

    // Writes the tokens of one word to `out`; returns the end of the output.
    int64_t* merge(long start, long size, int64_t* out) {
        if (long(after.size()) < size) {
            for (auto* numbers : {&tokens, &ranks, &joined}) numbers->resize(size);
            for (auto* places : {&before, &after}) places->resize(size);
        }
        for (long i = 0; i < size; i++) {
            tokens[i] = uint8_t(text.bytes[start + i]) + SPECIALS;
            before[i] = i - 1;
            after[i] = i + 1;
        }
        dropped.clear();
        for (long i = 0; i < size; i++) propose(i, size);
        while (!candidates.empty()) {
            uint64_t candidate = take_first();
            long left = uint32_t(candidate), right = after[left];
            if (ranks[left] != candidate >> 32) continue;  // a token was merged before
            if (drop_next()) {
                dropped.push_back(candidate);
                continue;
            }
            for (uint64_t again : dropped) add(again);
            dropped.clear();
            tokens[left] = joined[left];
            ranks[right] = NONE;
            after[left] = after[right];
            if (after[left] < size) before[after[left]] = left;
            propose(before[left], size);
            propose(left, size);
        }
        for (long i = 0; i < size; i = after[i]) *out++ = tokens[i];
        return out;
    }

    // The tokens of a text with dropout, from its tokens without dropout (`encode`). Each merge
    // removes one token, so the number of merges of a word is known: if none is dropped, the word
    // keeps its tokens.
    int64_t* retokenise(const Vocabulary& vocabulary, const uint32_t* id, const uint32_t* stop,
                        int64_t* out) {
        text.bytes.clear();
        for (const uint32_t* token = id; token < stop; token++)
            text.bytes.append(vocabulary.piece(*token), vocabulary.piece(*token + 1));
        text.classify(vocabulary.classes, vocabulary.classes_size);
        long size = text.bytes.size(), read = 0;  // in bytes; read: the tokens before id
        for (long i = 0, end; i < size; i = end) {
            end = text.word_end(i);
            bool whole = read == i;
            const uint32_t* first = id;
            for (; read < end; id++) read += vocabulary.piece(*id + 1) - vocabulary.piece(*id);
            if (whole && read == end && none_dropped(end - i - (id - first)))
                out = std::copy(first, id, out);
            else
                out = merge(i, end - i, out);
        }
        return out;
    }
};

}  // namespace

extern "C" {

// merges [M, 3]: left, right, joined; slots: 2^n of them, all free, at least 2 M
void bpe_table(const uint32_t* merges, long count, Merge* slots, long size) {
    for (long i = 0; i < count; i++, merges += 3) {
        uint64_t slot = slot_of(merges[0], merges[1], size - 1);
        while (slots[slot].joined) slot = (slot + 1) & (size - 1);
        slots[slot] = {merges[0], merges[1], uint32_t(i), merges[2]};
    }
}

// ids: the tokens of all rows; starts [rows + 1]; out_starts [rows]: the start of each row in `out`
void bpe_rows(const Vocabulary& vocabulary, const uint32_t* ids, const int64_t* starts,
              const int64_t* numbers, const int64_t* out_starts, long rows, uint64_t stream,
              uint64_t threshold, int64_t* out, int64_t* lengths) {
#pragma omp parallel
    {
        Work work{vocabulary.slots, uint64_t(vocabulary.size - 1), threshold};
#pragma omp for schedule(dynamic, 8)
        for (long row = 0; row < rows; row++) {
            work.key = scramble(stream + numbers[row]);
            int64_t *begin = out + out_starts[row], *end = begin;
            const uint32_t *id = ids + starts[row], *stop = ids + starts[row + 1];
            while (id < stop) {
                auto special = std::find_if(id, stop, [](uint32_t id) { return id < SPECIALS; });
                end = work.retokenise(vocabulary, id, special, end);
                if (special < stop) *end++ = *special++;
                id = special;
            }
            lengths[row] = end - begin;
        }
    }
}
}
