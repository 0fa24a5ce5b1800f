package sim

import "strings"

// Shrink takes parts out of a schedule, one after the other, for as long as it still
// fails. It returns what is left, and the parts that are not needed.
func Shrink(s *Schedule, fails func(*Schedule) bool) (small *Schedule, without []string) {
	small = s
	for again := true; again; {
		again = false
		for _, part := range small.Parts() {
			less, err := s.Without(append(without[:len(without):len(without)], part)...)
			if err != nil || !fails(less) {
				continue
			}
			small, without = less, append(without, part)
			again = true
			if strings.HasPrefix(part, "worker") {
				break // there may be more to take off that client
			}
		}
	}
	return small, without
}

// Excerpt returns the lines of a timeline that lead to its first violation, and n
// more at most on either side of what they are about.
func Excerpt(lines []string, n int) []string {
	for i, l := range lines {
		if strings.Contains(l, "  CHECK  ") {
			return lines[max(0, i-n):min(len(lines), i+3)]
		}
	}
	return lines[max(0, len(lines)-n):]
}
