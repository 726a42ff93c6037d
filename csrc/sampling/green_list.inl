// The green list of a watermark: which tokens it favours behind another one, from Philox4x64-10 (sampling/philox.h,
// here once for each instruction set).
namespace dragoman::DRAGOMAN_ISA {
namespace {

// Philox4x64-10 of the counters (first … first + 7, previous, 0, 0) and key (key, 1): four numbers of each.
DRAGOMAN_INLINE void green_numbers(std::uint64_t first, std::uint64_t previous, std::uint64_t key,
                                   std::uint64_t* numbers) {
  Longs counter[4] = {count_from(first), broadcast_long(previous), broadcast_long(0), broadcast_long(0)};
  std::uint64_t keys[2] = {key, 1};
  for (int round = 0; round < 10; ++round) {
    Longs high[2];
    const Longs a = multiply_wide(counter[0], 0xd2e7470ee14c6c93u, high[0]);
    const Longs b = multiply_wide(counter[2], 0xca5a826395121157u, high[1]);
    counter[0] = high[1] ^ counter[1] ^ broadcast_long(keys[0]);
    counter[1] = b;
    counter[2] = high[0] ^ counter[3] ^ broadcast_long(keys[1]);
    counter[3] = a;
    keys[0] += 0x9e3779b97f4a7c15u;
    keys[1] += 0xbb67ae8584caa73bu;
  }
  store_interleaved(numbers, counter);
}

void add_to_green(float* x, long first, long count, const GreenList& green, float delta) {
  constexpr long kTokens = 64;  // of eight counters: two of each number, the low half first
  if (green.limit == 0) return;
  const auto most = static_cast<std::uint32_t>(green.limit - 1);
  for (long begin = 0; begin < count; begin += kTokens) {
    std::uint64_t numbers[kTokens / 2];
    green_numbers(static_cast<std::uint64_t>((first + begin) / 8), green.previous, green.key, numbers);
    std::uint32_t words[kTokens];
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    std::memcpy(words, numbers, sizeof words);
    for_each_vector(count - begin < kTokens ? count - begin : kTokens, [&](long i, long n) {
      const Vec logits = load_up_to(x + begin + i, n);
      store_up_to(x + begin + i, add_where_at_most(logits, words + i, most, broadcast(delta)), n);
    });
  }
}

}  // namespace
}  // namespace dragoman::DRAGOMAN_ISA
