package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// planted are the folders whose code decides, or keeps what was decided.
var planted = []string{"pglimit", "strategies", "semaphore", "cleanup", "migrations/sql"}

func faults() (all []fault, err error) {
	for _, root := range planted {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			source, err := os.ReadFile(path) //nolint:gosec // in our own tree
			if err != nil {
				return err
			}
			switch {
			case strings.HasSuffix(path, "_test.go") || strings.Contains(path, "test/"):
			case strings.HasSuffix(path, ".go"):
				some, err := goFaults(path, source)
				all = append(all, some...)
				return err
			case strings.HasSuffix(path, ".sql") && path == "migrations/sql/00003_functions.sql":
				all = append(all, sqlFaults(path, source)...)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (f fault) at(from, to int, text string) fault {
	f.from, f.to, f.text = from, to, text
	return f
}

// operators of Go, and what stands in place of each.
var operators = map[token.Token]string{
	token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">", token.EQL: "!=", token.NEQ: "==",
	token.LAND: "||", token.LOR: "&&", token.ADD: "-", token.SUB: "+", token.MUL: "/", token.QUO: "*",
}

func goFaults(path string, source []byte) (all []fault, err error) {
	files := token.NewFileSet()
	tree, err := parser.ParseFile(files, path, source, 0)
	if err != nil {
		return nil, err
	}
	f := fault{file: path, place: path, old: source}
	offset := func(p token.Pos) int { return files.Position(p).Offset }
	ast.Inspect(tree, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.BinaryExpr:
			if with := operators[n.Op]; with != "" {
				all = append(all, f.at(offset(n.OpPos), offset(n.OpPos)+len(n.Op.String()), with))
			}
		case *ast.UnaryExpr:
			if n.Op == token.NOT {
				all = append(all, f.at(offset(n.OpPos), offset(n.OpPos)+1, ""))
			}
		case *ast.CallExpr:
			if name, is := n.Fun.(*ast.Ident); is && (name.Name == "min" || name.Name == "max") {
				all = append(all, f.at(offset(name.Pos()), offset(name.End()), map[string]string{"min": "max", "max": "min"}[name.Name]))
			}
		case *ast.ExprStmt: // a call for what it does
			all = append(all, f.at(offset(n.Pos()), offset(n.End()), ""))
		case *ast.AssignStmt:
			if _, field := n.Lhs[0].(*ast.SelectorExpr); field && len(n.Lhs) == 1 && n.Tok == token.ASSIGN {
				all = append(all, f.at(offset(n.Lhs[0].Pos()), offset(n.Lhs[0].End()), "_"))
			}
		}
		return true
	})
	return all, nil
}

// words of SQL, and what stands in place of each. Those of several words and signs come first.
var words = map[string]string{
	"<=": "<", ">=": ">", " < ": " <= ", " > ": " >= ", " + ": " - ", " - ": " + ",
	"greatest": "least", "least": "greatest", " and ": " or ", " or ": " and ", "not exists": "exists",
	"is not null": "is null", "is null": "is not null", "is distinct": "is not distinct",
	" for update": "", "true": "false", "false": "true", "on conflict do nothing": "",
	"filter (where": "filter (where not",
}

var word = regexp.MustCompile(`--.*|'[^']*'|create or replace|<=|>=| [<>+-] | and | or |not exists|is not null|is null|is distinct| for update|\b(greatest|least|true|false)\b|on conflict do nothing|filter \(where`)

var function = regexp.MustCompile(`create or replace (?:function|view) pglimit\.(\w+)`)

func sqlFaults(path string, source []byte) (all []fault) {
	f := fault{file: path, old: source}
	for _, found := range word.FindAllIndex(source, -1) {
		// What is generated from a folder is named as it is there.
		f.place = path
		if names := function.FindAllSubmatch(source[:found[0]], -1); names != nil {
			f.place = "migrations/functions/" + string(names[len(names)-1][1]) + ".sql"
		}
		if with, is := words[string(source[found[0]:found[1]])]; is {
			all = append(all, f.at(found[0], found[1], with))
		}
	}
	return all
}
