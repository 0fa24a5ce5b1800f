// Package recipes exists to be copied from: short answers to what people do with a
// lock, each with a test. docs/recipes.md says when to use which.
package recipes
