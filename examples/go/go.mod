module example.com/farhand-run

go 1.19
